//! A browser's connections: some to the plain port and some to the secure one, kept as long as the server keeps them.

use crate::heard::{Heard, Listening};
use anyhow::{Context, Error, Result, anyhow, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use std::error::Error as _;
use std::fmt;
use std::io::{self, ErrorKind};
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

    /// A site without a secure port that anybody could trust.
    #[cfg(test)]
    pub fn plain(address: SocketAddr) -> Self {
        let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        Site { plain: address, secure: address, tls: TlsConnector::from(Arc::new(config)) }
    }
}

/// A connection, ready for a request.
struct Line {
    sender: SendRequest<Full<Bytes>>,
    heard: Heard,
}

/// A connection that was closed before a byte of the answer came. It happens to a kept one that the server gives up
/// just when it is asked.
#[derive(Debug)]
struct Unheard(String);

impl fmt::Display for Unheard {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "closed without an answer: {}", self.0)
    }
}

impl std::error::Error for Unheard {}

impl Line {
    async fn open(site: &Site, secure: bool) -> Result<Self> {
        let address = if secure { site.secure } else { site.plain };
        let socket = TcpStream::connect(address).await.context("connect")?;
        socket.set_nodelay(true)?;
        let heard = Heard::default();
        let sender = if secure {
            let name = ServerName::IpAddress(address.ip().into());
            let stream = site.tls.connect(name, socket).await.context("TLS")?;
            let stream = Listening { stream, heard: heard.clone() };
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        } else {
            let stream = Listening { stream: socket, heard: heard.clone() };
            let (sender, connection) = handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            sender
        };
        Ok(Line { sender, heard })
    }

    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<(StatusCode, Bytes)> {
        self.heard.clear();
        self.sender.ready().await.map_err(|error| self.lost(&error))?;
        let response = self.sender.send_request(request).await.map_err(|error| self.lost(&error))?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| anyhow!("body: {}", root(&error)))?;
        Ok((status, body.to_bytes()))
    }

    /// What to say of a request that has no head of an answer.
    fn lost(&self, error: &hyper::Error) -> Error {
        if was_closed(error) && !self.heard.is_set() {
            return Unheard(root(error)).into();
        }
        anyhow!("request: {}", root(error))
    }
}

/// The other side closed the connection, in whichever way it was noticed.
fn was_closed(error: &hyper::Error) -> bool {
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    error.is_canceled()
        || error.is_closed()
        || error.is_incomplete_message()
        || matches!(cause, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::UnexpectedEof))
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
    /// Requests that were sent anew, as the server had closed the kept connection.
    pub asked_again: u64,
}

impl Lines {
    /// Asks once. A kept connection that the server has just closed is replaced, if asking again does no harm: not a
    /// byte of an answer came, and an order is never sent twice.
    pub async fn ask(&mut self, site: &Site, ask: &Ask<'_>) -> Result<Bytes> {
        let idle = if ask.secure { &mut self.secure } else { &mut self.plain };
        idle.0.retain(|line| !line.sender.is_closed());
        let kept = idle.0.pop();
        let was_kept = kept.is_some();
        match self.exchange(site, ask, kept).await {
            Err(error) if was_kept && ask.form.is_none() && error.is::<Unheard>() => {
                self.asked_again += 1;
                self.exchange(site, ask, None).await
            }
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
        self.asked_again += other.asked_again;
    }

    pub fn close(&mut self) {
        self.plain.0.clear();
        self.secure.0.clear();
    }
}

/// What the store says of an error. Numbers (of connections, mostly) are left out, so that equal errors are counted
/// together.
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
    use super::{Ask, Lines, Site, reason};
    use anyhow::Result;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn errors_of_the_store_are_told() {
        assert_eq!(reason(b"<html><p>Home: (conn=4711) gone</p></html>"), ": Home: (conn=#) gone");
        assert_eq!(reason(b"<html><h1>502 Bad Gateway</h1></html>"), "");
    }

    const GOOD: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    fn read_request(socket: &mut TcpStream) {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(b"\r\n\r\n") && socket.read(&mut byte).is_ok_and(|count| count == 1) {
            text.push(byte[0]);
        }
    }

    /// Answers the first request well, the second like this and then closes that connection, and a third one, on
    /// another connection, well again. Returns what became of the second, and how often it was asked again.
    async fn second(answer: &'static str, form: Option<&'static str>) -> (Result<bytes::Bytes>, u64) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let site = Site::plain(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            for text in [GOOD, answer] {
                read_request(&mut socket);
                socket.write_all(text.as_bytes()).unwrap();
            }
            drop(socket);
            let mut socket = listener.accept().unwrap().0;
            read_request(&mut socket);
            socket.write_all(GOOD.as_bytes()).unwrap();
        });
        let mut lines = Lines::default();
        lines.ask(&site, &Ask { secure: false, address: "/", form: None }).await.unwrap();
        let result = lines.ask(&site, &Ask { secure: false, address: "/", form }).await;
        (result, lines.asked_again)
    }

    #[tokio::test]
    async fn a_kept_connection_that_is_closed_is_replaced() {
        let (result, asked_again) = second("", None).await;
        assert_eq!((result.unwrap().as_ref(), asked_again), (b"ok".as_slice(), 1));
    }

    #[tokio::test]
    async fn what_was_answered_in_part_is_an_error() {
        for answer in [
            "HTTP/1.1 2",
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok",
            "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n",
        ] {
            let (result, asked_again) = second(answer, None).await;
            assert!(result.is_err() && asked_again == 0, "{answer}: {result:?}");
        }
    }

    #[tokio::test]
    async fn an_order_is_never_sent_twice() {
        let (result, asked_again) = second("", Some("a=b")).await;
        assert!(result.unwrap_err().to_string().contains("without an answer") && asked_again == 0);
    }
}
