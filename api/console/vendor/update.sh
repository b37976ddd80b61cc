#!/bin/sh
# Takes the libraries of the console, and the one that checks its pages in tests, from npm, and prints their hashes for
# README.md beside this file. npm compares each package with the hash that its registry has signed. Usage:
# sh api/console/vendor/update.sh
set -eu
cd "$(dirname "$0")"
here=$(pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
: > licences
take() { # PACKAGE VERSION LICENCE FILE TARGET
    npm pack --silent "$1@$2" > name
    mkdir -p "$1" && tar -xzf "$(cat name)" -C "$1" --strip-components 1
    # a browser has no package names, and the maps of the sources stay in npm
    sed -e 's#from"preact"#from"./preact.js"#' -e '/^\/\/# sourceMappingURL=/d' "$1/$4" > "$5"
    printf '%s\n\n' "$1 $2, as $(basename "$5"):" >> licences
    cat "$1/LICENSE" >> licences
    printf '\n\n' >> licences
    printf '| %s | %s | %s | `%s` | `%s` |\n' "$1" "$2" "$3" "${5#"$here/"}" "$(sha256sum "$5" | cut -d ' ' -f 1)"
}
take preact 11.2.0 MIT dist/preact.mjs "$here/preact.js"
take preact 11.2.0 MIT hooks/dist/hooks.mjs "$here/hooks.js"
take htm 3.1.1 Apache-2.0 dist/htm.module.js "$here/htm.js"
take uplot 1.6.32 MIT dist/uPlot.esm.js "$here/uplot.js"
take uplot 1.6.32 MIT dist/uPlot.min.css "$here/uplot.css"
cp licences "$here/LICENCES.txt"
cd "$here/../../.."
root=$(pwd)
cd "$work"
here=$root
take axe-core 4.14.1 MPL-2.0 axe.min.js "$root/tests/console/axe.min.js"
