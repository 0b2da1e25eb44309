# shellcheck shell=bash
# Where a Debian's packages are, of whatever Debian this host is. Sourced by the recipes that make one, whose shell is bash.

# debian_sources SUITE: the lines of sources.list(5) for this Debian: those that this host's apt has of it; if it has none,
# the same mirrors' directories of it. Prints nothing where apt knows no mirror of Debian.
debian_sources() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC2016  # the variables are apt's
  apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(CODENAME) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' |
    awk -v suite="$1" -v keyring="$keyring" '
      function line(uri, release) { print "deb [signed-by=" keyring "] " uri " " release " main" }
      $1 != "Debian" || $2 != "main" {next}
      $3 ~ "^" suite "(-updates|-security)?$" {line($5, $4); known = 1; next}
      $4 ~ /-security$/ {security = security ? security : $5}
      $4 !~ /-/ {mirror = mirror ? mirror : $5}
      END {
        if (known || !mirror) exit
        line(mirror, suite); line(mirror, suite "-updates")
        if (security) line(security, suite "-security")
      }' | LC_ALL=C sort -u
}

# lists_hook: a hook of mmdebstrap's (--setup-hook) that gives the new root's apt the package lists which this host's apt has
# fetched: it asks whether they are of today, and fetches no more than what is not.
lists_hook() {
  local lists
  eval "$(apt-config shell lists Dir::State::lists/d)"
  # shellcheck disable=SC2016  # $1 is the hook's
  printf 'mkdir -p "$1/var/lib/apt/lists/partial" && find "%s" -maxdepth 1 \( -name "*_InRelease" -o -name "*_Packages" \) -exec cp -t "$1/var/lib/apt/lists" {} +\n' "${lists%/}"
}

# foreign_apt DIR ARCH SOURCES: the path of an apt configuration (for APT_CONFIG) in DIR that knows the packages for this
# processor and no other, with their lists fetched: this host's own apt need not know them.
foreign_apt() {
  local dir=$1 arch=$2
  mkdir -p "$dir"/{lists/partial,cache/archives/partial,empty}
  : >"$dir/status"
  echo "$3" >"$dir/sources.list"
  cat >"$dir/apt.conf" <<CONF
APT::Architecture "$arch";
APT::Architectures "$arch";
Dir::Etc::sourcelist "$dir/sources.list";
Dir::Etc::sourceparts "$dir/empty";
Dir::State::lists "$dir/lists";
Dir::State::status "$dir/status";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
CONF
  APT_CONFIG=$dir/apt.conf apt-get -q -q update >&2
  echo "$dir/apt.conf"
}
