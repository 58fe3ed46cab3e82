//! TLS as it is used here, and the verifier that knows trusted certificates and nothing else.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, ClientConnection, Resumption};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ServerConfig, ServerConnection};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme, version::TLS13,
};

use super::{Certificate, Trusted};
use crate::config::{CertificatePaths, Private, read_guarded};

/// What makes TLS connections.
pub struct Tls {
    /// This bridge's own certificate.
    pub own: Certificate,
    /// Those of the peers.
    pub trusted: Arc<Trusted>,
    key: PrivateKeyDer<'static>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// What went wrong in TLS, as rustls says it.
pub type TlsError = rustls::Error;

const TRUSTED_UNUSABLE: &str = "cannot use the trusted certificates";

impl Tls {
    /// Reads key, certificate and trusted certificates. Complaints about single trusted files come beside.
    pub fn read(paths: &CertificatePaths) -> anyhow::Result<(Self, Vec<String>)> {
        let own = read_own(paths)?;
        let key = read_key(paths)?;
        let usual = CertificatePaths::default().trusted;
        let (trusted, complaints) = Trusted::read_first(&paths.trusted, &usual).context(TRUSTED_UNUSABLE)?;
        Ok((Self::new(own, key, trusted)?, complaints))
    }

    /// Reads them again. The key is read only if the certificate is another: a bridge that has become a user of little
    /// power may not be able to, and need not.
    pub fn read_again(&self, paths: &CertificatePaths) -> anyhow::Result<(Self, Vec<String>)> {
        let own = read_own(paths)?;
        let key = if own == self.own { self.key.clone_key() } else { read_key(paths)? };
        let (trusted, complaints) = Trusted::read(&paths.trusted).context(TRUSTED_UNUSABLE)?;
        Ok((Self::new(own, key, trusted)?, complaints))
    }

    /// From what has been read.
    pub fn new(own: Certificate, key: PrivateKeyDer<'static>, trusted: Trusted) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let trusted = Arc::new(trusted);
        let pinned = Arc::new(Pinned { trusted: trusted.clone(), provider: provider.clone() });
        let chain = vec![own.der().clone()];
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(pinned.clone())
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .context("key and certificate do not belong together")?;
        client.enable_sni = false;
        client.resumption = Resumption::disabled();
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(pinned)
            .with_single_cert(chain, key.clone_key())
            .context("key and certificate do not belong together")?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(Self { own, trusted, key, client: Arc::new(client), server: Arc::new(server) })
    }

    /// The connecting end. The address is not part of the identity; it only has to be something.
    pub fn connect(&self, address: IpAddr) -> Result<rustls::Connection, TlsError> {
        ClientConnection::new(self.client.clone(), ServerName::IpAddress(address.into())).map(Into::into)
    }

    /// The accepting end.
    pub fn accept(&self) -> Result<rustls::Connection, TlsError> {
        ServerConnection::new(self.server.clone()).map(Into::into)
    }
}

fn read_own(paths: &CertificatePaths) -> anyhow::Result<Certificate> {
    let path = paths.certificate.display();
    let certificate = read_guarded(&paths.certificate, Private::No, paths.user)
        .and_then(|text| Certificate::from_pem(&text))
        .with_context(|| format!("cannot use the certificate {path}"))?;
    if certificate.has_expired_at(SystemTime::now()) {
        bail!("the certificate {path} has expired; make another with `beelined keygen`");
    }
    if certificate.addresses.is_empty() {
        bail!("the certificate {path} names no address to speak for");
    }
    Ok(certificate)
}

fn read_key(paths: &CertificatePaths) -> anyhow::Result<PrivateKeyDer<'static>> {
    read_guarded(&paths.key, Private::Yes, paths.user)
        .and_then(|text| key_from_pem(&text))
        .with_context(|| format!("cannot use the key {}", paths.key.display()))
}

fn key_from_pem(text: &str) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| anyhow::anyhow!("it holds no private key that can be read (PEM): {error}"))
}

/// Trusts a certificate that is one of the trusted, within its validity; the keys prove themselves by the
/// signature of the handshake, as always.
struct Pinned {
    trusted: Arc<Trusted>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn check(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), TlsError> {
        let trusted = self.trusted.find(certificate).filter(|_| chain.is_empty());
        let trusted = trusted.ok_or(CertificateError::UnknownIssuer)?;
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs());
        if trusted.has_expired_at(now) {
            return Err(CertificateError::Expired.into());
        }
        if !trusted.is_valid_at(now) {
            return Err(CertificateError::NotValidYet.into());
        }
        Ok(())
    }
}

/// What both kinds of verifier are asked of signatures, in the same words.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _: &[u8],
            _: &CertificateDer<'_>,
            _: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            // TLS 1.2 is not spoken, so nothing can be signed in its way.
            Err(PeerIncompatible::Tls12NotOffered.into())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, TlsError> {
            verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.check(certificate, chain, now).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Pinned {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, TlsError> {
        self.check(certificate, chain, now).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned").field("trusted", &self.trusted).finish_non_exhaustive()
    }
}
