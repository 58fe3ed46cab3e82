# For suites: the source of a Debian package, of the same release as the packages installed here.

# debian_source PACKAGE DIRECTORY: unpacks it to DIRECTORY/PACKAGE, a link.
debian_source() {
    local package=$1 directory=$2 release
    mkdir -p "$directory/lists/partial" "$directory/cache/archives/partial"
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # In lists of our own: the machine's are left as they are.
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $release main" \
        >"$directory/sources.list"
    local apt=(apt-get -qq -o "Dir::Etc::sourcelist=$directory/sources.list" -o Dir::Etc::sourceparts=-
        -o "Dir::State::lists=$directory/lists" -o "Dir::Cache=$directory/cache" -o APT::Sandbox::User=root)
    (
        cd "$directory"
        "${apt[@]}" update
        "${apt[@]}" source "$package"
        rm -rf lists cache
        ln -sfn "$(find . -maxdepth 1 -type d -name "$package-*")" "$package"
    ) >&2
}
