# shellcheck shell=bash
# The steps that ./quickstart and ./check share. Sourced, with the checkout as working directory.

command -v dpkg >/dev/null || { echo "${0##*/}: needs Debian: there is no dpkg here" >&2; exit 1; }
# shellcheck source=../rootfs-tools/scripts/common.sh
. rootfs-tools/scripts/common.sh

log=$PWD/build/$script.log
step_names=()
step_times=()
step_notes=()
step_count=0 # set by the caller

if [[ -t 1 ]]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m' erase=$'\r\e[K'
else
    bold='' dim='' red='' green='' plain='' erase=''
fi

now_ms() { date +%s%3N; }
seconds() { printf '%d.%d s' $(($1 / 1000)) $(($1 % 1000 / 100)); }

fail() {
    printf '%s%s: %s%s\n' "$red" "$script" "$*" "$plain" >&2
    exit 1
}

check_machine() {
    [[ $(id -u) -eq 0 ]] ||
        fail "needs root, to install packages and to start virtual machines; try: sudo $0 $*"
    need_arch
    local version
    # shellcheck source=/dev/null
    version=$(. /etc/os-release && echo "${ID-} ${VERSION_ID-}")
    [[ $version == "debian 12" ]] ||
        printf '%snote: made for Debian 12; this is %s%s\n' "$dim" "$version" "$plain"
    local dir=$cache free_mib
    until [[ -d $dir ]]; do dir=$(dirname "$dir"); done
    free_mib=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
    ((free_mib >= 2048)) || [[ -s $cache/images/names/base.json ]] ||
        fail "needs 2 GiB of free disk space in '$dir', there are $free_mib MiB"
}

# Copies lines to the log and shows where it is: in place on a terminal, every 5 s elsewhere.
show_lines() {
    local line last=-5 columns
    columns=$(($(tput cols 2>/dev/null || echo 80) - 8))
    while IFS= read -r line; do
        printf '%s\n' "$line" >>"$log"
        line=${line//$'\r'/ }
        if [[ -n $erase ]]; then
            printf '%s      %s%.*s%s' "$erase" "$dim" "$columns" "$line" "$plain"
        elif ((SECONDS - last >= 5)); then
            printf '      %.110s\n' "$line"
            last=$SECONDS
        fi
    done
    printf '%s' "$erase"
}

# step NAME COMMAND...: runs it with its output in the log; its last word can be left in $note.
# A step that has nothing to do sets note and costs next to nothing.
step() {
    local name=$1 began status=0
    shift
    begin_step "$name"
    note=
    note_file=$(mktemp)
    began=$(now_ms)
    # `set -e` does not reach into a condition, so the steps check for themselves.
    { "$@" 2>&1 || status=$?; exit "$status"; } | show_lines || status=${PIPESTATUS[0]}
    note=$(cat "$note_file")
    rm -f "$note_file"
    if ((status != 0)); then
        printf '%s  the end of %s:%s\n' "$dim" "$log" "$plain" >&2
        tail -n 30 "$log" | sed 's/^/      /' >&2
        fail "step '$name' failed"
    fi
    end_step "$(($(now_ms) - began))" "$note"
}

begin_step() {
    step_names+=("$1")
    printf '%s[%d/%d] %s%s\n' "$bold" "${#step_names[@]}" "$step_count" "$1" "$plain"
    printf '\n==== %s\n' "$1" >>"$log"
}

end_step() {
    step_times+=("$1")
    step_notes+=("$2")
    printf '      %sdone%s in %s%s\n' "$green" "$plain" "$(seconds "$1")" "${2:+ ($2)}"
}

set_note() { echo "$*" >"$note_file"; }

print_times() {
    local i total=0
    printf '\n%s%-34s %10s%s\n' "$bold" "step" "time" "$plain"
    for i in "${!step_times[@]}"; do
        printf '%-34s %10s  %s\n' "${step_names[i]}" "$(seconds "${step_times[i]}")" "${step_notes[i]}"
        total=$((total + step_times[i]))
    done
    printf '%-34s %10s\n' "together" "$(seconds "$total")"
}

# ---- the steps ----

# install_packages GROUP...: one apt-get install of what is missing, no apt call when nothing is.
install_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    if [[ ${#missing[@]} -eq 0 ]]; then
        set_note "all installed"
    else
        export DEBIAN_FRONTEND=noninteractive
        echo "missing: ${missing[*]}"
        # A source of the machine that does not answer must not stop us if the rest is enough.
        apt-get update -q || echo "apt-get update failed for some sources, ignoring"
        apt-get install -q -y --no-install-recommends --no-remove -o Dpkg::Options::=--force-confdef \
            -o Dpkg::Options::=--force-confold "${missing[@]}" || return
        set_note "${#missing[@]} installed"
    fi
    # libvirt's driver wants its user to exist; only the package of its system service makes it.
    getent passwd libvirt-qemu >/dev/null ||
        useradd --system --user-group --no-create-home --home-dir /var/lib/libvirt \
            --shell /usr/sbin/nologin libvirt-qemu
}

# build_preset PRESET DIR [TARGET...]
build_preset() {
    if [[ ! -f $2/build.ninja ]]; then
        cmake --preset "$1" || return
    fi
    cmake --build "$2" ${3:+--target "${@:3}"} | tee "$note_file.build"
    local status=${PIPESTATUS[0]}
    ! grep -q 'no work to do' "$note_file.build" || set_note "up to date"
    rm -f "$note_file.build"
    return "$status"
}

fetch_kernel() {
    if [[ -s $cache/kernels/distro/info.json ]]; then
        set_note "there already"
        return
    fi
    build/libexec/hearth/kernel-fetch || return
    set_note "$(sed -n 's/.*"version": "\([^"]*\)".*/\1/p' "$cache/kernels/distro/info.json")"
}

build_kernel() {
    if [[ -s $cache/kernels/minimal/info.json ]]; then
        set_note "there already"
        return
    fi
    build/libexec/hearth/kernel-build
}

# make_image NAME
make_image() {
    if [[ -s $cache/images/names/$1.json ]]; then
        set_note "there already"
        return
    fi
    "build/libexec/hearth/image-$1"
}
