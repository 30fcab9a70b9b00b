# shellcheck shell=bash
# What the scripts of rootfs-tools share. Sourced, never run.
# HEARTH_CACHE is where everything goes (default /var/cache/hearth), as in base/paths.h.

cache=${HEARTH_CACHE:-/var/cache/hearth}
[[ $cache == /* ]] || { echo "HEARTH_CACHE: '$cache' is not an absolute path" >&2; exit 2; }
arch=$(dpkg --print-architecture)
script=${0##*/}
# shellcheck source=/dev/null
suite=$(. /etc/os-release && echo "${VERSION_CODENAME-}")

say() { printf '%s: %s\n' "$script" "$*" >&2; }
die() { printf '%s: error: %s\n' "$script" "$*" >&2; exit 1; }

need_root() {
    [[ $(id -u) -eq 0 ]] || die "needs root (try: sudo $0)"
}

need_arch() {
    case $arch in
        amd64 | arm64) ;;
        *) die "no support for architecture '$arch', only amd64 and arm64" ;;
    esac
}

# wanted_packages GROUP...: the packages of these groups in packages.txt, one a line, sorted.
wanted_packages() {
    local list=${BASH_SOURCE[0]%/*}/packages.txt group
    [[ -f $list ]] || list=${BASH_SOURCE[0]%/*}/../../cmake/packages.txt
    for group in "$@"; do
        awk -v g="$group" -v a="$arch" '$1 == g && (NF < 3 || $3 == a) { print $2 }' "$list"
    done | sort -u
}

# missing_packages GROUP...: those that are not installed, nor the one that does instead.
missing_packages() {
    local wanted
    mapfile -t wanted < <(wanted_packages "$@")
    # shellcheck disable=SC2016
    dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]%|*}" "${wanted[@]#*|}" 2>/dev/null |
        awk -v wanted="${wanted[*]}" '
            $1 == "installed" { installed[$2] = 1 }
            END {
                n = split(wanted, list, " ")
                for (i = 1; i <= n; i++) {
                    split(list[i], one, "|")
                    if (!(one[1] in installed) && !(one[2] in installed)) print one[1]
                }
            }'
}

need_packages() {
    local missing
    mapfile -t missing < <(missing_packages "$@")
    [[ ${#missing[@]} -eq 0 ]] ||
        die "needs packages; install them with: apt-get install --no-install-recommends ${missing[*]}"
}

# One run of a kind at a time; the lock goes with the process.
lock() {
    mkdir -p "$cache"
    exec {lock_fd}>"$cache/.$1.lock"
    flock -n "$lock_fd" || { say "another run is at it, waiting"; flock "$lock_fd"; }
}

# A private work directory on the cache's file system, removed however the script ends.
make_work_dir() {
    mkdir -p "$cache/build"
    work=$(mktemp -d "$cache/build/$script.XXXXXX")
    trap 'rm -rf --one-file-system "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Puts a finished directory in place of the one that is there, if any.
install_dir() {
    local from=$1 to=$2
    mkdir -p "${to%/*}"
    sync -f "$from"
    if [[ -e $to ]]; then
        mv -T "$to" "$work/replaced"
    fi
    mv -T "$from" "$to"
}

# Newest version of a package that apt knows, with a fresh package list when it knows none.
apt_candidate() {
    local version
    version=$(apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }')
    if [[ -z $version || $version == "(none)" ]]; then
        say "package lists are empty or old, running apt-get update"
        apt-get update -q >&2 || say "apt-get update failed for some sources, ignoring"
        version=$(apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }')
    fi
    [[ -n $version && $version != "(none)" ]] || die "no package '$1' in the apt sources of this machine"
    echo "$version"
}

# Downloads a package into CACHE/apt/packages unless it is there; prints the file.
apt_fetch() {
    local package=$1 version=$2 dir=$cache/apt/packages file
    mkdir -p "$dir"
    # apt writes the ':' of an epoch as %3a.
    for file in "$dir/${package}_${version//:/%3a}_"*.deb; do
        if [[ -f $file ]] && dpkg-deb --info "$file" >/dev/null 2>&1; then
            echo "$file"
            return
        fi
    done
    say "downloading $package $version"
    mkdir "$work/download"
    (cd "$work/download" && apt-get -q -o APT::Sandbox::User=root download "$package=$version" >&2) ||
        die "cannot download $package $version"
    file=$(echo "$work"/download/*.deb)
    mv "$file" "$dir/"
    rmdir "$work/download"
    echo "$dir/${file##*/}"
}

# write_info DIR NAME VERSION SOURCE: the info.json of a kernel directory.
write_info() {
    local sha
    sha=$(sha256sum "$1/kernel" | cut -d' ' -f1)
    printf '{"name": "%s", "version": "%s", "arch": "%s", "source": "%s", "sha256": "%s"}\n' \
        "$2" "$3" "$arch" "$4" "$sha" >"$1/info.json"
}

# The entries of the Debian archive among the machine's apt sources, whatever files they are in;
# third-party sources and backports stay out. One line each: URI, suite, component, list file.
debian_targets() {
    # shellcheck disable=SC2016
    apt-get indextargets --format '$(ORIGIN)|$(REPO_URI) $(RELEASE) $(COMPONENT) $(FILENAME)' \
        'Created-By: Packages' "Architecture: $arch" 2>/dev/null |
        sed -n 's/^Debian|//p' |
        awk -v s="$suite" '$2 == s || $2 == s "-updates" || $2 == s "-security"'
}

# apt options that say how to reach the archive from here. They do not stay in the image.
apt_options() {
    apt-config dump |
        grep -E '^Acquire::(https?::|Check-Valid-Until|ForceIPv[46]|Retries)' |
        grep -v -E ' "";$' || true
}

# apt_source_line URI SUITE COMPONENT: the entry of a sources.list.
apt_source_line() {
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $1 $2 $3"
}
