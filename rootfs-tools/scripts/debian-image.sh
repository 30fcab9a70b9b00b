# shellcheck shell=bash
# Makes a small Debian root from the distribution's packages and imports it as an image. Sourced by
# the scripts image-NAME, which set `image` and `packages` and may define customize(), run with the
# new root as $1.
#
#   image-NAME [--force] [--tar FILE]
#
# --tar only writes the root as a tar file and imports nothing. The packages come from the machine's
# own Debian sources and stay in CACHE/apt, so that making it again needs no network. The same
# packages give the same image.
# shellcheck disable=SC2154
: "${image:?}" "${packages:?}" "${here:?}"

prepare_sources() {
    local uri release component file list copy
    rm -rf "$work/lists"
    mkdir -p "$work/lists/partial"
    : >"$work/sources.list"
    while read -r uri release component file; do
        apt_source_line "$uri" "$release" "$component" >>"$work/sources.list"
        for list in "$file" "${file%_"$component"_*}"_{InRelease,Release,Release.gpg}; do
            for copy in "$list"{,.lz4,.gz,.xz,.zst}; do
                [[ ! -f $copy ]] || cp "$copy" "$work/lists/"
            done
        done
    done < <(debian_targets)
    [[ -s $work/sources.list ]]
}

# Newest date among the archive's release files: no file of the image is younger.
archive_date() {
    cat "$work"/lists/*Release | sed -n 's/^Date: //p' |
        while read -r date; do date -d "$date" +%s; done | sort -n | tail -n1
}

# Hooks of mmdebstrap, run with the new root as $1: package lists and files go in from the cache,
# then package files go out again and with them all that an image does not need.
before_packages() {
    mkdir -p "$1/var/lib/apt/lists" "$1/var/cache/apt/archives/partial"
    cp -a "$work/lists/." "$1/var/lib/apt/lists/"
    local deb
    for deb in "$cache"/apt/archives*/*.deb; do # of all images: what one has, another need not load
        [[ ! -f $deb || -f $1/var/cache/apt/archives/${deb##*/} ]] ||
            cp -l "$deb" "$1/var/cache/apt/archives/" || : # just replaced by another run
    done
}
customize() { :; }
after_packages() {
    find "$archives" -name '*.deb' -delete
    find "$1/var/cache/apt/archives" -name '*.deb' -exec cp -l -t "$archives" {} +
    rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/log/*.log "$1"/etc/*-
    rm -f "$1"/etc/{hostname,resolv.conf}
    rm -rf "$1"/var/log/apt "$1"/var/cache/{debconf,ldconfig}/*
    # No password of a mirror in an image that others may read.
    sed -i -E 's|://[^/@ ]*@|://|' "$1"/etc/apt/sources.list.d/*
    customize "$1"
    printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$1/etc/hosts"
}

make_root() {
    archives=$cache/apt/archives
    [[ $image == base ]] || archives+=-$image
    mkdir -p "$archives" "$work/tmp"
    # Of the environment only what it takes: PYTHONDONTWRITEBYTECODE alone would change the image.
    local variable environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8
        "SOURCE_DATE_EPOCH=$(archive_date)" "TMPDIR=$work/tmp" "work=$work" "archives=$archives" "cache=$cache")
    for variable in http_proxy https_proxy no_proxy; do
        [[ -z ${!variable-} ]] || environment+=("$variable=${!variable}")
    done
    local hook
    for hook in before_packages after_packages; do
        { echo '#!/bin/bash -eu'; declare -f customize "$hook"; echo "$hook \"\$1\""; } >"$work/$hook"
        chmod +x "$work/$hook"
    done
    rm -f "$work/root.tar"
    apt_options >"$work/apt.conf"
    env -i "${environment[@]}" mmdebstrap --mode=root --variant=minbase --include="$packages" --format=tar \
        --skip=update,essential/unlink \
        --aptopt="$work/apt.conf" --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' \
        --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' \
        --dpkgopt='path-exclude=/usr/share/lintian/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' \
        --setup-hook="$work/before_packages" --customize-hook="$work/after_packages" \
        "$suite" "$work/root.tar" "$work/sources.list" >&2
}

update_lists() {
    say "running apt-get update"
    apt-get update -q >&2 || say "apt-get update failed for some sources, ignoring"
}

# make_image [--force] [--tar FILE]
make_image() {
    local force='' tar='' before
    while [[ $# -gt 0 ]]; do
        case $1 in
            --force) force=1 ;;
            --tar) tar=${2:?--tar needs a file name}; shift ;;
            *) echo "usage: $script [--force] [--tar FILE]" >&2; exit 2 ;;
        esac
        shift
    done
    need_root
    need_arch
    need_packages run
    lock "image-$image"
    if [[ -z $force && -z $tar && -s $cache/images/names/$image.json ]]; then
        say "already there: image '$image' (--force makes it again)"
        return
    fi
    make_work_dir
    prepare_sources || { update_lists; prepare_sources; } ||
        die "no source of the Debian archive for '$suite' among the apt sources of this machine"
    say "making a minimal $suite root with ${packages//,/, }"
    if ! make_root; then
        # Lists that are behind the archive name packages that are gone.
        before=$(archive_date)
        update_lists
        prepare_sources
        if [[ $(archive_date) == "$before" ]] || ! make_root; then
            die "mmdebstrap failed (its output is above)"
        fi
    fi
    if [[ -n $tar ]]; then
        mv "$work/root.tar" "$tar"
        return
    fi
    say "importing image '$image'"
    "$here/rootfs-tool" import "$image" "$work/root.tar"
}
