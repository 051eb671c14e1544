#!/usr/bin/env bash
# Puts the page's two libraries, of npm at the versions below, beside its scripts, with licences and SHA-256 (VENDOR.json).
# --check: are the stored files what npm's are?
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(preact@10.29.8 htm@3.1.1)
# From file, in npm's package, and its name here. The browser finds modules by address, so hooks import preact by its file.
files=(
    "preact dist/preact.module.js preact.module.js"
    "preact hooks/dist/hooks.module.js hooks.module.js"
    "preact LICENSE preact.LICENSE"
    "htm dist/htm.module.js htm.module.js"
    "htm LICENSE htm.LICENSE"
)
target=agent/penstock/agent/page/static/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sum() { sha256sum "$1" | cut -d ' ' -f 1; }

for package in "${packages[@]}"; do
    archive=$(cd "$work" && npm pack --silent "$package")
    mkdir "$work/${package%@*}"
    tar -xzf "$work/$archive" -C "$work/${package%@*}" --strip-components=1
done
mkdir "$work/vendor"
{
    echo '{'
    echo '  "command": "make page-vendor",'
    printf '  "packages": ["%s", "%s"],\n' "${packages[@]}"
    echo '  "files": {'
    separator=
    for line in "${files[@]}"; do
        read -r package source name <<<"$line"
        sed -e 's#from"preact"#from"./preact.module.js"#' -e '/^\/\/# sourceMappingURL=/d' \
            "$work/$package/$source" >"$work/vendor/$name"
        printf '%s    "%s": {"package": "%s", "source": "%s", "npm": "%s", "sha256": "%s"}' "$separator" \
            "$name" "$package" "$source" "$(sum "$work/$package/$source")" "$(sum "$work/vendor/$name")"
        separator=$',\n'
    done
    printf '\n  }\n}\n'
} >"$work/vendor/VENDOR.json"
# For TypeScript: what a file's types are called in npm.
echo 'export * from "preact";' >"$work/vendor/preact.module.d.ts"
echo 'export * from "preact/hooks";' >"$work/vendor/hooks.module.d.ts"
printf 'import htm from "htm";\nexport default htm;\n' >"$work/vendor/htm.module.d.ts"

if [[ ${1:-} == --check ]]; then
    diff -r "$work/vendor" "$target" >&2 || {
        echo "$target is not what scripts/update-vendor.sh gets from npm; 'make page-vendor' writes it" >&2
        exit 1
    }
    exit 0
fi
rm -rf "$target"
cp -r "$work/vendor" "$target"
