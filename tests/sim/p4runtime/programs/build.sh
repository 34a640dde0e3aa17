#!/bin/sh
# Rebuilds the compiled programs beside this file; needs p4c (p4c-bm2-ss) on PATH.
set -eu
cd "$(dirname "$0")"
compile() {
    p4c-bm2-ss --std p4-16 -o "$1.json" --p4runtime-files "$1.p4info.txtpb" "$1.p4"
}
compile reflect
compile kitchen
compile mirror
