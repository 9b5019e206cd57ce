#!/bin/sh
# The cross compiler of `ninja aarch64`, and where it comes from.
#
#   build/aarch64.sh fetch CACHE    compiler and libraries to a folder in CACHE, once, and a link to it to out/aarch64/tools
#   build/aarch64.sh cc|ar ...      run them
#
# The compiler is Zig's, which is clang with the headers and symbols of every glibc: on any PC the same one makes programs
# for glibc 2.35, which Ubuntu 22.04 and so JetPack 6 has. A distribution's gcc-aarch64-linux-gnu makes them for its own
# glibc, and from 2.38 on those ask for symbols that the board lacks (__isoc23_strtol). Libraries are made from what the
# distribution's source packages hold: these come from the same mirrors as all packages, while arm64 packages of Ubuntu
# have other mirrors, and the fault above; nor does this machine become one of two architectures.
set -eu
zig=ziglang==0.13.0.post1
glibc=2.35
tools=out/aarch64/tools
python=/usr/bin/python3

say() { printf '%s\n' "$*" >&2; }

fetch_compiler() {
    $python -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: -d . $zig >log 2>&1 || {
        cat log >&2
        say "error: pip could not fetch $zig, the cross compiler: is PyPI in reach?"
        return 1
    }
    $python -m zipfile -e ./ziglang-*.whl . && chmod +x ziglang/zig && rm -rf ./*.whl ./ziglang-* || return 1
    printf '%s\n' '#!/bin/sh' 'd=$(dirname "$0")' 'export ZIG_GLOBAL_CACHE_DIR="$d/cache" ZIG_LOCAL_CACHE_DIR="$d/cache"' \
        "exec \"\$d/ziglang/zig\" cc -target aarch64-linux-gnu.$glibc \"-I\$d/include\" \"-L\$d/lib\" \"\$@\"" >cc
    printf '%s\n' '#!/bin/sh' 'exec "$(dirname "$0")/ziglang/zig" ar "$@"' >ar
    printf '%s\n' '#!/bin/sh' 'exec "$(dirname "$0")/ziglang/zig" ranlib "$@"' >ranlib
    chmod +x cc ar ranlib
}

# By apt-get with lists of its own: what this machine knows of packages stays as it is.
fetch_sources() {
    mkdir -p apt/lists/partial apt/archives/partial apt/sources
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$f" ] || sed -n 's/^ *deb\([ \t]\)/deb-src\1/p' "$f" >"apt/sources/${f##*/}"
    done
    for f in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$f" ] || sed 's/^Types:.*/Types: deb-src/' "$f" >"apt/sources/${f##*/}"
    done
    set -- -q -o Dir::Etc::sourcelist=/none -o "Dir::Etc::sourceparts=$PWD/apt/sources" -o "Dir::State::Lists=$PWD/apt/lists" \
        -o "Dir::Cache=$PWD/apt" -o APT::Sandbox::User=root
    apt-get "$@" update >log 2>&1 || :          # a mirror without source packages need not be the one
    apt-get "$@" source --tar-only pcre2 utf8proc jansson >>log 2>&1 || {
        cat log >&2
        say "error: apt-get could not fetch the sources of pcre2, utf8proc and jansson: do its mirrors have them?"
        return 1
    }
}

make_library() {
    mkdir "$1"
    { (cd "$1" && cmake -E tar xf ../"$1"_*.orig.tar.*) &&
        cmake -G Ninja -S "$1"/*/ -B "$1/make" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
            -DCMAKE_C_COMPILER="$PWD/cc" -DCMAKE_AR="$PWD/ar" -DCMAKE_RANLIB="$PWD/ranlib" -DCMAKE_BUILD_TYPE=Release \
            -DCMAKE_INSTALL_PREFIX="$PWD" -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON \
            -DCMAKE_POLICY_VERSION_MINIMUM=3.5 -DPCRE2_SUPPORT_JIT=ON -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF \
            -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF &&
        cmake --build "$1/make" --target install; } >log 2>&1 || {
        cat log >&2
        say "error: $1 does not build for aarch64"
        return 1
    }
    rm -rf "$1" "$1"_*
}

# Everything, in the folder at hand.
fetch_all() {
    fetch_compiler && fetch_sources && make_library pcre2 && make_library utf8proc && make_library jansson || return 1
    cp /usr/include/xxhash.h include/ || return 1       # all of it is this header
    rm -rf apt log bin cmake man share
}

case ${1:-} in
fetch)
    mkdir -p "$2"
    cache=$(cd "$2" && pwd)
    home=$cache/aarch64-glibc-$glibc-zig-${zig#*==}
    if [ ! -d "$home" ]; then
        say "fetching $zig and making libraries for aarch64 (80 MB, 340 MB unpacked)"
        dir=$(mktemp -d "$cache/fetch.XXXXXX")
        trap 'rm -rf "$dir"' EXIT
        (cd "$dir" && fetch_all) || exit 3
        mv -T "$dir" "$home" 2>/dev/null || [ -d "$home" ]      # or somebody else was faster
    fi
    mkdir -p out/aarch64
    ln -sfn "$home" $tools
    ;;
cc | ar)
    [ -x $tools/$1 ] || { say "error: no cross compiler for aarch64: ./jllm aarch64 fetches it and builds"; exit 3; }
    command=$tools/$1
    shift
    exec "$command" "$@"
    ;;
*)
    say "usage: build/aarch64.sh fetch CACHE | cc ... | ar ..."
    exit 2
    ;;
esac
