# $argv[1]: key, $argv[2]: default. The environment first, then the configuration, the strongest file last.
function _coldstart_setting
    set -l variable COLDSTART_(string upper -- $argv[1])
    if test -n "$$variable"
        printf '%s\n' $$variable
        return
    end
    set -l value $argv[2]
    set -l base $HOME/.config
    test -n "$XDG_CONFIG_HOME"; and set base $XDG_CONFIG_HOME
    set -l fragments /etc/coldstart/conf.d/*.toml
    for file in /etc/coldstart/config.toml $fragments $base/coldstart/config.toml $COLDSTART_CONFIG
        test -f "$file" -a -r "$file"; or continue
        while read -l line
            string match -q -- '[*' $line; and break
            set -l found (string match -r -- "^$argv[1]\\s*=\\s*[\"']([^\"']*)" $line)
            and set value $found[2]
        end <$file
    end
    printf '%s\n' $value
end

function _coldstart_state_folder
    if test (id -u) = 0
        _coldstart_setting state_dir /var/lib/coldstart
        return
    end
    set -l base $HOME/.local/state
    test -n "$XDG_STATE_HOME"; and set base $XDG_STATE_HOME
    _coldstart_setting state_dir $base/coldstart
end

function _coldstart_image_names
    set -l words (commandline -opc 2>/dev/null)
    set -l store (_coldstart_setting store (_coldstart_state_folder)/store)
    if set -l position (contains -i -- --store $words)
        set store $words[(math $position + 1)]
    end
    set -l folder (string replace -r '^file://' '' -- $store)/refs/
    for file in $folder**
        test -f "$file"; and string sub -s (math (string length -- $folder) + 1) -- $file
    end
end

function _coldstart_snapshot_names
    for folder in (_coldstart_state_folder)/snapshots/*/
        string replace -r '.*/([^/]+)/$' '$1' -- $folder
    end
end

function _coldstart_variants
    for folder in (_coldstart_state_folder)/snapshots/*/*/
        string replace -r '.*/([^/]+)/$' '$1' -- $folder
    end
end

function _coldstart_mountpoints
    string match -r -- '^(?:\S+ ){4}(\S+) .* - (?:fuse\.coldstart|overlay coldstart) ' </proc/self/mountinfo | string match -v -r '^\d+ \d+ |/mounts/[^/]+/lower$' | string unescape
end

function _coldstart_source_dirs
    set -l word (commandline -ct)
    if string match -q -- '*:*' $word
        set -l kind (string split -m 1 : -- $word)
        string replace -r '^' "$kind[1]:" -- $kind[2]*/
    else
        printf '%s\n' oci: dir:
    end
end
