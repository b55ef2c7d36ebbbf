#!/bin/sh
# Starts a server with Coroner's library (nginx or php-fpm) in a folder, has its workers, which
# belong to another user, crash twice, and waits for a report of each crash while the master lives.
# Arguments: the server, the preloaded library.
set -eu
server=$1 library=$2 here=$PWD count=3

cat > nginx.conf <<END
user nobody nogroup;
worker_processes $count;
pid $here/pid;
error_log $here/log;
events { worker_connections 16; }
http { access_log off; server { listen unix:$here/socket; } }
END
cat > php-fpm.conf <<END
[global]
pid = $here/pid
error_log = $here/log
[www]
user = nobody
group = nogroup
listen = $here/socket
pm = static
pm.max_children = $count
END

case $server in
nginx) LD_PRELOAD=$library nginx -c "$here/nginx.conf" ;;
php-fpm) LD_PRELOAD=$library "$(ls /usr/sbin/php-fpm*)" --daemonize --fpm-config "$here/php-fpm.conf" ;;
esac

# Repeats a command until it succeeds, at most for 30 seconds.
await() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || { echo "timeout: $*"; tail -n 5 log; exit 1; }
        sleep 0.1
    done
}

workers() {
    for status in /proc/[0-9]*/status; do
        grep -sq "^PPid:.$master\$" "$status" && grep -sq '^Uid:.65534' "$status" && echo "$status" | cut -d/ -f3
    done
    true
}

are_up() { [ "$(workers | wc -l)" -eq $count ]; }
are_reported() { [ "$(find "$CORONER_STORE/reports" -name '*.json' 2> /dev/null | wc -l)" -eq "$1" ]; }
is_down() { ! kill -0 "$master" 2> /dev/null; }

await test -s pid
master=$(cat pid)
for turn in 1 2; do
    await are_up
    kill -SEGV $(workers)
    await are_reported $((turn * count))
done
kill -QUIT "$master"
await is_down
