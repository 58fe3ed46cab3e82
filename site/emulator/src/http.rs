//! A browser's connections: some to the plain port and some to the secure one, kept as long as the server keeps them.

use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// After this a request is given up. Far above every limit of the specification.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the store is.
pub struct Site {
    pub plain: SocketAddr,
    pub secure: SocketAddr,
    tls: TlsConnector,
}

impl Site {
    pub fn new(plain: SocketAddr, secure: SocketAddr, authority: &Path) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let certificate = rustls::pki_types::CertificateDer::from_pem_file(authority)
            .with_context(|| format!("no certificate in {}", authority.display()))?;
        roots.add(certificate)?;
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Ok(Site { plain, secure, tls: TlsConnector::from(Arc::new(config)) })
    }
}

/// A connection, ready for a request.
struct Line(SendRequest<Full<Bytes>>);

impl Line {
    async fn open(site: &Site, secure: bool) -> Result<Self> {
        let address = if secure { site.secure } else { site.plain };
        let socket = TcpStream::connect(address).await.context("connect")?;
        socket.set_nodelay(true)?;
        let sender = if secure {
            let name = ServerName::IpAddress(address.ip().into());
            let stream = site.tls.connect(name, socket).await.context("TLS")?;
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        } else {
            let (sender, connection) = handshake(TokioIo::new(socket)).await?;
            tokio::spawn(connection);
            sender
        };
        Ok(Line(sender))
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
        let response = self.0.send_request(request).await.map_err(|error| anyhow!("request: {}", root(&error)))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| anyhow!("body: {}", root(&error)))?;
        Ok((status, body.to_bytes()))
    }
}

/// The innermost cause, which has no addresses or numbers in it, so that equal errors are counted as one.
fn root(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// What is asked for.
pub struct Ask<'a> {
    pub secure: bool,
    pub address: &'a str,
    /// A form, which makes it a POST.
    pub form: Option<&'a str>,
}

/// Connections of one kind, each for one request at a time.
#[derive(Default)]
struct Idle(Vec<Line>);

/// The connections of one browser.
#[derive(Default)]
pub struct Lines {
    plain: Idle,
    secure: Idle,
    pub opened: u64,
}

impl Lines {
    /// Asks once. A kept connection that the server has just closed is replaced, if asking again does no harm; an order is never
    /// sent twice.
    pub async fn ask(&mut self, site: &Site, ask: &Ask<'_>) -> Result<Bytes> {
        let idle = if ask.secure { &mut self.secure } else { &mut self.plain };
        idle.0.retain(|line| !line.0.is_closed());
        let kept = idle.0.pop();
        let was_kept = kept.is_some();
        let first = self.exchange(site, ask, kept).await;
        match first {
            Err(_) if was_kept && ask.form.is_none() => self.exchange(site, ask, None).await,
            result => result,
        }
    }

    async fn exchange(&mut self, site: &Site, ask: &Ask<'_>, kept: Option<Line>) -> Result<Bytes> {
        let mut opened = 0;
        let attempt = async {
            let mut line = match kept {
                Some(line) => line,
                None => {
                    opened += 1;
                    Line::open(site, ask.secure).await?
                }
            };
            line.0.ready().await.map_err(|error| anyhow!("kept connection: {}", root(&error)))?;
            let (status, body) = line.ask(request(site, ask)?).await?;
            if status != StatusCode::OK {
                bail!("status {}{}", status.as_u16(), reason(&body));
            }
            Ok((line, body))
        };
        let result = tokio::time::timeout(PATIENCE, attempt).await.unwrap_or_else(|_| Err(anyhow!("no answer")));
        self.opened += opened;
        let (line, body) = result?;
        if ask.secure { &mut self.secure } else { &mut self.plain }.0.push(line);
        Ok(body)
    }

    /// Takes a part of the kept plain connections away, for requests at the same time.
    pub fn split(&mut self) -> Lines {
        let mut other = Lines::default();
        if self.plain.0.len() > 1 {
            other.plain.0.extend(self.plain.0.pop());
        }
        other
    }

    pub fn join(&mut self, other: Lines) {
        self.plain.0.extend(other.plain.0);
        self.secure.0.extend(other.secure.0);
        self.opened += other.opened;
    }

    pub fn close(&mut self) {
        self.plain.0.clear();
        self.secure.0.clear();
    }
}

/// What the store says of an error. Numbers (of connections, mostly) are left out, so that equal errors are counted together.
fn reason(body: &[u8]) -> String {
    let page = String::from_utf8_lossy(body);
    let Some((text, _)) = page.split_once("<p>").and_then(|(_, rest)| rest.split_once("</p>")) else {
        return String::new();
    };
    let words = text.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty());
    format!(": {}", words.collect::<Vec<_>>().join("#").chars().take(160).collect::<String>())
}

fn request(site: &Site, ask: &Ask<'_>) -> Result<Request<Full<Bytes>>> {
    let host = if ask.secure { site.secure } else { site.plain };
    let builder = Request::builder().uri(ask.address).header(HOST, host.to_string());
    let request = match ask.form {
        None => builder.method(Method::GET).body(Full::default()),
        Some(form) => builder
            .method(Method::POST)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::new(Bytes::copy_from_slice(form.as_bytes()))),
    };
    Ok(request?)
}

#[cfg(test)]
mod tests {
    use super::reason;

    #[test]
    fn errors_of_the_store_are_told() {
        assert_eq!(reason(b"<html><p>Home: (conn=4711) gone</p></html>"), ": Home: (conn=#) gone");
        assert_eq!(reason(b"<html><h1>502 Bad Gateway</h1></html>"), "");
    }
}
