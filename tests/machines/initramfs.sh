#!/bin/busybox sh
# Loads what the disks need, mounts them, and hands over to the root.
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs devtmpfs /dev
while read -r module; do
	/bin/busybox insmod /modules/$module || echo "cannot load $module"
done </modules/order
/bin/busybox mount -t ext4 -o rw,noatime /dev/vda /root
/bin/busybox mount -t ext4 -o ro /dev/vdb /root/opt/coldstart
/bin/busybox mount --move /dev /root/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /root /opt/coldstart/init.sh
