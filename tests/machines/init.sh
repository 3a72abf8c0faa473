#!/bin/sh
# The guest's first process: what a host offers to containers and criu, and then the agent.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /dev/mqueue
mount -t devpts devpts /dev/pts
mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ln -sfn /proc/self/fd /dev/fd
for module in virtio_console overlay fuse tun veth nf_tables \
	inet_diag tcp_diag udp_diag unix_diag netlink_diag af_packet_diag; do
	modprobe -q $module
done
hostname guest
ip link set lo up
ldconfig
# waiting also reaps the orphans that every command may leave to the first process
/usr/bin/python3 /opt/coldstart/agent.py &
wait $!
echo "the agent ended: $?"
poweroff -f 2>/dev/null || echo o >/proc/sysrq-trigger
sleep 5
