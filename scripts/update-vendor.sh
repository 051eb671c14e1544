#!/usr/bin/env bash
# Puts the page's three libraries, of npm at the versions below, beside its scripts, with licences and SHA-256 (VENDOR.json).
# --check: are the stored files what npm's are?
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(preact@10.29.8 htm@3.1.1 uplot@1.6.32)
# Of uPlot npm has no small module. Its own is minified here without what no plot of the page has: a legend, scales that are
# not linear, other paths than straight lines, dates as text, and helpers for other programs.
minifier=terser@5.44.1
unused_lines='\(?(paths\.(stepped|bars|spline)|uPlot\.(join|tzDate|range(Log|Asinh|Num)|fmtNum|fmtDate|addGap|clipGaps|assign|orient|pxRatio)) *= '
unused_parts='s/\b(\w+\.)?distr (==|>=) +([234]|100)\b/false/g; s/const showLegend = legend\.show/const showLegend = false/'
# The page writes times itself.
unused_dates='/^\tconst _timeAxisStamps = \[/,/^\t\];/c const _timeAxisStamps = null;
s/\b(const _time(AxisVals|SeriesVal)) +=.*/\1 = null;/; s/\btimeSeriesVal\(_tzDate, .*_fmtDate\)\) : sv/null : sv/
s/\btimeAxisVals\(_tzDate, timeAxisStamps\(av, _fmtDate\)\)/av/; s/\btimeAxisVal\(_tzDate, av\)/av/'
unused_rules='s/\.u-(title|legend|inline|series)[^{]*\{[^}]*\}//g'
# From file, in npm's package, and its name here. The browser finds modules by address, so hooks import preact by its file.
files=(
    "preact dist/preact.module.js preact.module.js"
    "preact hooks/dist/hooks.module.js hooks.module.js"
    "preact LICENSE preact.LICENSE"
    "htm dist/htm.module.js htm.module.js"
    "htm LICENSE htm.LICENSE"
    "uplot dist/uPlot.esm.js uplot.module.js"
    "uplot dist/uPlot.min.css uplot.css"
    "uplot LICENSE uplot.LICENSE"
)
target=agent/penstock/agent/page/static/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sum() { sha256sum "$1" | cut -d ' ' -f 1; }

npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix "$work" "$minifier"
for package in "${packages[@]}"; do
    archive=$(cd "$work" && npm pack --silent "$package")
    mkdir "$work/${package%@*}"
    tar -xzf "$work/$archive" -C "$work/${package%@*}" --strip-components=1
done
mkdir "$work/vendor"
{
    echo '{'
    echo '  "command": "make page-vendor",'
    listed=$(printf '"%s", ' "${packages[@]}")
    echo "  \"packages\": [${listed%, }],"
    echo '  "files": {'
    separator=
    for line in "${files[@]}"; do
        read -r package source name <<<"$line"
        sed -e 's#from"preact"#from"./preact.module.js"#' -e '/^\/\/# sourceMappingURL=/d' \
            "$work/$package/$source" >"$work/vendor/$name"
        case $name in
            uplot.module.js)
                sed -E -e "/^\s*$unused_lines/d" -e "$unused_parts" -e "$unused_dates" \
                    "$work/$package/$source" >"$work/linear.mjs"
                "$work/node_modules/.bin/terser" "$work/linear.mjs" --module --ecma 2020 --mangle toplevel \
                    --compress passes=3,pure_getters=true --comments /Copyright/ --output "$work/vendor/$name"
                ;;
            uplot.css) sed -E "$unused_rules" "$work/$package/$source" >"$work/vendor/$name" ;;
        esac
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
printf 'import uPlot from "uplot";\nexport default uPlot;\n' >"$work/vendor/uplot.module.d.ts"

if [[ ${1:-} == --check ]]; then
    diff -r "$work/vendor" "$target" >&2 || {
        echo "$target is not what scripts/update-vendor.sh gets from npm; 'make page-vendor' writes it" >&2
        exit 1
    }
    exit 0
fi
rm -rf "$target"
cp -r "$work/vendor" "$target"
