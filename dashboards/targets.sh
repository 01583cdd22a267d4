#!/bin/sh
# Usage: sh targets.sh RUNS INTO [EVERY_S]: keeps INTO/NAME.json the same as RUNS/NAME/exporter.json, for each run
# that has one. Prometheus takes a * in the last part of a path alone, and a run's name is in the last but one.
set -eu
runs=$1 into=$2 every_s=${3:-}

copy() {
  for found in "$runs"/*/exporter.json; do
    [ -e "$found" ] || continue
    name=$(basename "$(dirname "$found")")
    cmp -s "$found" "$into/$name.json" && continue
    cp "$found" "$into/.$name" && mv "$into/.$name" "$into/$name.json" # whole or not at all
  done
  for known in "$into"/*.json; do
    [ -e "$known" ] || continue
    [ -e "$runs/$(basename "$known" .json)/exporter.json" ] || rm -f "$known"
  done
}

mkdir -p "$into"
copy
while [ -n "$every_s" ]; do
  sleep "$every_s"
  copy
done
