#!/usr/bin/env bash
# Removes from the given prefix what ci/install.sh has put there, by the list that it has left. What others have put into
# Beeline's directories, and configuration (/etc/beeline), stays.
set -euo pipefail
export LC_ALL=C
prefix=$1
list=share/beeline/installed
if [ ! -f "$prefix/$list" ]; then
    echo "There is no $prefix/$list, which make install leaves: install once more what an older release has installed." >&2
    exit 1
fi
cd "$prefix"
# Those of Beeline alone, the inner ones first.
directories=$(awk -F/ '{
    path = ""
    for (part = 1; part < NF; part++) {
        path = path (part > 1 ? "/" : "") $part
        if (path ~ /beeline/) print path
    }
}' "$list" | sort -ru)
# An installation that was interrupted has left one with another name.
sed 'p; s/$/.new/' "$list" | xargs -d '\n' rm -f --
printf '%s\n' "$directories" | xargs -d '\n' rmdir --ignore-fail-on-non-empty -- 2>/dev/null || true
drop_ins=$(grep -ls 'beeline run' /etc/systemd/system/*/*.conf || true)
if [ -n "$drop_ins" ]; then
    printf 'These services do not start without the command; remove what starts them so:\n%s\n' "$drop_ins" >&2
fi
echo "Removed from $prefix. Programs that run with the library keep it until they end."
