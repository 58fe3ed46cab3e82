# Apache httpd: prefork, worker and event; files with sendfile, mmap and read, keep-alive, uploads through a proxy, a graceful restart while clients fetch
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need apache2 curl wget
version apache2 -v
modules=/usr/lib/apache2/modules
mkdir -p "$WORK/www"
some_bytes 20000000 >"$WORK/www/large"
some_bytes 321 >"$WORK/www/small"
chmod -R a+rX "$WORK"
for mpm in prefork worker event; do
    front=$(free_port)
    back=$(free_port)
    mkdir -p "$WORK/$mpm"
    cat >"$WORK/$mpm/httpd.conf" <<CONF
ServerRoot $WORK/$mpm
ServerName localhost
PidFile $WORK/$mpm/pid
DefaultRuntimeDir $WORK/$mpm
LoadModule mpm_${mpm}_module $modules/mod_mpm_$mpm.so
LoadModule authz_core_module $modules/mod_authz_core.so
LoadModule alias_module $modules/mod_alias.so
LoadModule proxy_module $modules/mod_proxy.so
LoadModule proxy_http_module $modules/mod_proxy_http.so
User www-data
Group www-data
ErrorLog /dev/stderr
Listen 127.0.0.1:$back
Listen 127.0.0.1:$front
KeepAlive On
MaxKeepAliveRequests 0
DocumentRoot $WORK/www
<Directory $WORK/www>
    Require all granted
</Directory>
<VirtualHost 127.0.0.1:$back>
    DocumentRoot $WORK/www
    EnableSendfile On
</VirtualHost>
<VirtualHost 127.0.0.1:$front>
    # Pooled connections may be closed by a restart just when they are used again, over TCP as well.
    ProxyPass / http://127.0.0.1:$back/ disablereuse=On
</VirtualHost>
CONF
    # A session of its own: when it ends, Apache ends its whole process group.
    launch setsid apache2 -d "$WORK/$mpm" -f "$WORK/$mpm/httpd.conf" -DFOREGROUND
    main=$server
    await_port "$front"
    fetch() { with_mode curl -sS --max-time 60 "$@"; }
    echo "$mpm large $(fetch "http://127.0.0.1:$back/large" | sha256sum)"
    echo "$mpm proxied $(fetch "http://127.0.0.1:$front/large" | sha256sum)"
    echo "$mpm part $(fetch -r 5000-900000 "http://127.0.0.1:$front/large" | sha256sum)"
    echo "$mpm kept alive $(fetch "http://127.0.0.1:$back/small?[1-50]" | sha256sum)"
    echo "$mpm missing $(fetch -o /dev/null -w '%{http_code}' "http://127.0.0.1:$front/nothing")"
    echo "$mpm wget $(with_mode wget -q -O - "http://127.0.0.1:$back/large" | sha256sum)"
    for n in 1 2 3 4 5 6; do
        fetch "http://127.0.0.1:$front/large" | sha256sum >"$WORK/$mpm/parallel.$n" &
        fetching[n]=$!
    done
    kill -USR1 "$main"
    for n in 1 2 3 4 5 6; do wait "${fetching[n]}"; done
    echo "$mpm in parallel $(sort -u "$WORK/$mpm"/parallel.* | wc -l) $(cat "$WORK/$mpm/parallel.1")"
    echo "$mpm after a graceful restart $(fetch "http://127.0.0.1:$front/small" | sha256sum)"
    stop "$main"
done
