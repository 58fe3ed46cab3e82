"""The web tier: nginx or Apache httpd, with one task: pictures and the style sheet, TLS, and a proxy for the store."""

import os
import pathlib
import resource
import subprocess

from .hosts import Missing, shell
from .tiers import Tier

NGINX = """
daemon off;
worker_processes {workers};
pid {directory}/pid;
error_log {directory}/errors warn;
{user}
worker_rlimit_nofile {files};
events {{ worker_connections {connections}; }}
http {{
    access_log off;
    include /etc/nginx/mime.types;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 75s;
    keepalive_requests 100000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    open_file_cache max={kept_files} inactive=60s;
    open_file_cache_valid 60s;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:store:8m;
    upstream application {{
        server {application} max_fails=0;
        {keep}
    }}
    server {{
        listen {address}:{port} backlog=1024;
        listen {address}:{secure_port} ssl backlog=1024;
        root {images};
        location /images/ {{ expires 1h; }}
        location /static/ {{ expires 1h; }}
        location /store/ {{
            proxy_pass http://application;
            {upstream_version}
            proxy_buffers 16 16k;
            proxy_connect_timeout 5s;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""


class Web(Tier):
    """Serves pictures by itself, ends TLS, and passes the rest on."""

    name = "web"

    def __init__(self, *words, port=8000, secure_port=8443, application=None, images="", certificate="", pooled=True, workers=2,
                 **more):
        super().__init__(*words, **more)
        self.port, self.secure_port, self.application = port, secure_port, application
        self.images, self.certificate, self.pooled, self.workers = pathlib.Path(images), pathlib.Path(certificate), pooled, workers

    def warm(self):
        """Reads all pictures once: a worker that waits for the disk keeps all of its connections waiting."""
        for picture in self.images.rglob("*"):
            if picture.is_file():
                picture.read_bytes()

    def log_of_errors(self):
        return (self.directory / "errors").read_text(errors="replace")

    def ready(self):
        # From the web server's own host, since the others may be in namespaces.
        script = ("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], timeout=2).read()")
        url = f"http://{self.host.address}:{self.port}/static/store.css"
        return subprocess.run(self.host.inside(["python3", "-c", script, url]), capture_output=True).returncode == 0


def nginx_limits(files):
    """Connections of a worker, and how many files it keeps open, of so many descriptors: a connection takes one, and another one if
    it is on a lane."""
    connections = min(4096, files // 4)
    return {"files": files, "connections": connections, "kept_files": min(30_000, files - 2 * connections - 64)}


class Nginx(Web):
    title = "nginx"
    PROGRAMS = ("nginx",)

    @staticmethod
    def version():
        return subprocess.run(["nginx", "-v"], capture_output=True, text=True).stderr.strip()

    def command(self):
        config = self.directory / "nginx.conf"
        # Kept connections to the application server, or a new one for each request.
        keep = "keepalive 128; keepalive_requests 100000; keepalive_timeout 60s;" if self.pooled else ""
        version = 'proxy_http_version 1.1; proxy_set_header Connection "";' if self.pooled else "proxy_http_version 1.0;"
        config.write_text(NGINX.format(
            user="user root;" if os.geteuid() == 0 else "", workers=self.workers,
            **nginx_limits(resource.getrlimit(resource.RLIMIT_NOFILE)[0]), directory=self.directory, certificate=self.certificate / "crt.pem",
            key=self.certificate / "key.pem", application=f"{self.application.host.address}:{self.application.port}", keep=keep,
            upstream_version=version, address=self.host.address, port=self.port, secure_port=self.secure_port,
            images=self.images))
        return ["nginx", "-e", self.directory / "errors", "-c", config, "-p", self.directory]


APACHE = """
ServerRoot "{directory}"
ServerName {address}
PidFile "{directory}/pid"
ErrorLog "{directory}/errors"
LogLevel warn
{modules}
{user}
ServerLimit 8
ThreadsPerChild 64
MaxRequestWorkers 512
StartServers 8
# Or processes that seem too many are ended, and close connections that browsers keep while an order is on its way.
MaxSpareThreads 512
Timeout 60
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 75
Listen {address}:{port}
Listen {address}:{secure_port}
ListenBacklog 1024
TypesConfig /etc/mime.types
DocumentRoot "{images}"
<Directory "{images}">
    Require all granted
</Directory>
<LocationMatch "^/(images|static)/">
    ExpiresActive On
    ExpiresDefault "access plus 1 hour"
</LocationMatch>
ProxyTimeout 60
<Proxy "http://{application}">
    {keep}
</Proxy>
ProxyPass "/store/" "http://{application}/store/"
SSLSessionCache "shmcb:{directory}/tls(512000)"
<VirtualHost {address}:{secure_port}>
    SSLEngine On
    SSLProtocol -all +TLSv1.2 +TLSv1.3
    SSLCertificateFile "{certificate}"
    SSLCertificateKeyFile "{key}"
</VirtualHost>
"""


class Apache(Web):
    title = "Apache httpd"
    PROGRAMS = ("apache2",)
    MODULES = ("mpm_event", "authz_core", "mime", "expires", "proxy", "proxy_http", "ssl", "socache_shmcb")
    DIRECTORY = pathlib.Path("/usr/lib/apache2/modules")

    @staticmethod
    def version():
        return shell("apache2", "-v").splitlines()[0]

    def command(self):
        if not self.DIRECTORY.exists():
            raise Missing("there is no Apache httpd; `ci/packages.sh site` installs it")
        config = self.directory / "httpd.conf"
        # Kept connections to the application server, or a new one for each request.
        keep = "ProxySet connectiontimeout=5 max=128 ttl=60" if self.pooled else "ProxySet connectiontimeout=5 disablereuse=On"
        config.write_text(APACHE.format(
            modules="\n".join(f'LoadModule {name}_module "{self.DIRECTORY}/mod_{name}.so"' for name in self.MODULES),
            user="User www-data\nGroup www-data" if os.geteuid() == 0 else "", directory=self.directory,
            certificate=self.certificate / "crt.pem", key=self.certificate / "key.pem",
            application=f"{self.application.host.address}:{self.application.port}", keep=keep, address=self.host.address,
            port=self.port, secure_port=self.secure_port, images=self.images))
        return ["apache2", "-D", "FOREGROUND", "-d", self.directory, "-f", config]


WEB_SERVERS = {"nginx": Nginx, "apache": Apache}
