#!/bin/sh
# Builds Coroner and the app, and has it die in every way. What comes out should be as in EXPECTED.md.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../.."
cargo build --release -p coroner-ffi -p coroner-cli --features coroner-ffi/system-reports
cd "$here"
swift build -c release
app=.build/release/Shop
for way in null overflow abort fatal-error index exception zombie kill error; do
    SHOP_STORE=$(mktemp -d)
    export SHOP_STORE
    echo "== $way"
    # What the shell says of the death is not the app's.
    sh -c "$app $way" 2>/dev/null || echo "exit status $?"
    $app
    for report in "$SHOP_STORE"/reports/*.json; do
        if [ -e "$report" ]; then
            ../../target/release/coroner show "$report" | sed -n 1p
        fi
    done
    rm -rf "$SHOP_STORE"
done
