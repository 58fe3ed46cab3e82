//! One certificate: making it, and reading what it says.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::name::BridgeName;
use crate::prefix::Prefix;

/// What begins the URI of a prefix.
const PREFIX_URI: &str = "beeline://prefix/";

/// More than anybody needs, and few enough for a hello to carry them.
pub const ADDRESSES_MAX: usize = 256;

/// A bridge's certificate.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The bridge's name.
    pub name: BridgeName,
    /// What it may speak for.
    pub addresses: Vec<Prefix>,
    /// When it begins to be valid.
    pub not_before: OffsetDateTime,
    /// When it ends.
    pub not_after: OffsetDateTime,
    der: CertificateDer<'static>,
}

/// The SHA-256 of a certificate: what two administrators read to each other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Certificate {
    /// Reads a PEM file's text, which holds one certificate.
    pub fn from_pem(text: &str) -> anyhow::Result<Self> {
        let mut found = CertificateDer::pem_slice_iter(text.as_bytes());
        let der = found.next().context("it holds no certificate (PEM, `-----BEGIN CERTIFICATE-----`)")?;
        let der = der.map_err(|error| anyhow::anyhow!("it is not well-formed PEM: {error}"))?;
        if found.next().is_some() {
            bail!("it holds more than one certificate; a bridge's certificate stands alone");
        }
        Self::from_der(der)
    }

    /// Reads a certificate itself.
    pub fn from_der(der: CertificateDer<'static>) -> anyhow::Result<Self> {
        let (rest, parsed) =
            X509Certificate::from_der(&der).map_err(|error| anyhow::anyhow!("it is no X.509 certificate: {error}"))?;
        if !rest.is_empty() {
            bail!("something follows the certificate");
        }
        let name = name_of(&parsed)?;
        let alternatives = parsed.subject_alternative_name().context("its alternative names are unreadable")?;
        let mut addresses = Vec::new();
        for alternative in alternatives.iter().flat_map(|extension| &extension.value.general_names) {
            addresses.extend(prefix_of(alternative)?);
        }
        if addresses.len() > ADDRESSES_MAX {
            bail!("it names more than {ADDRESSES_MAX} addresses");
        }
        addresses.sort();
        addresses.dedup();
        let validity = parsed.validity();
        let (not_before, not_after) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
        Ok(Self { name, addresses, not_before, not_after, der })
    }

    /// The certificate as it goes over the wire.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// Whether it is exactly these bytes.
    pub fn is(&self, der: &[u8]) -> bool {
        self.der.as_ref() == der
    }

    /// Whether it holds at that time.
    pub fn is_valid_at(&self, time: SystemTime) -> bool {
        (self.not_before..=self.not_after).contains(&OffsetDateTime::from(time))
    }

    /// Whether it ended before that time.
    pub fn has_expired_at(&self, time: SystemTime) -> bool {
        self.not_after < OffsetDateTime::from(time)
    }

    /// Days until it expires; negative when it has.
    pub fn days_left(&self) -> i64 {
        (self.not_after - OffsetDateTime::now_utc()).whole_days()
    }

    /// Its SHA-256.
    pub fn fingerprint(&self) -> Fingerprint {
        let digest = ring::digest::digest(&ring::digest::SHA256, &self.der);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Fingerprint(bytes)
    }
}

fn name_of(parsed: &X509Certificate<'_>) -> anyhow::Result<BridgeName> {
    let mut names = parsed.subject().iter_common_name();
    let name = names.next().context("it has no common name, which would be the bridge's name")?;
    if names.next().is_some() {
        bail!("it has several common names");
    }
    let name = name.as_str().map_err(|_| anyhow::anyhow!("its common name is no text"))?;
    name.parse().map_err(anyhow::Error::msg)
}

/// What an alternative name lets the bridge speak for; `None` for names that are none of our business.
fn prefix_of(name: &GeneralName<'_>) -> anyhow::Result<Option<Prefix>> {
    let prefix = match name {
        GeneralName::IPAddress(bytes) => {
            let address = if let Ok(v4) = <[u8; 4]>::try_from(*bytes) {
                IpAddr::from(v4)
            } else if let Ok(v6) = <[u8; 16]>::try_from(*bytes) {
                IpAddr::from(v6)
            } else {
                bail!("an IP address in it has {} bytes", bytes.len());
            };
            Prefix::host(address)
        }
        GeneralName::URI(uri) if uri.starts_with("beeline:") => match uri.strip_prefix(PREFIX_URI) {
            Some(prefix) => prefix.parse(),
            None => bail!("it holds the name `{}`, of a kind that this version does not know", uri.escape_debug()),
        },
        _ => return Ok(None),
    };
    prefix.map(Some).map_err(|error| anyhow::anyhow!("it names an address for which nobody can speak: {error}"))
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({}, {})", self.name, self.fingerprint())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SHA256")?;
        self.0.iter().try_for_each(|byte| write!(f, ":{byte:02X}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new key and its certificate.
pub struct Generated {
    /// The certificate, for everybody (PEM).
    pub certificate: String,
    /// The key, for nobody else (PEM).
    pub key: String,
}

/// Makes a key (ECDSA on P-256) and its certificate.
pub fn generate(
    name: &BridgeName,
    addresses: &[Prefix],
    not_before: SystemTime,
    lifetime: Duration,
) -> anyhow::Result<Generated> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name.as_str());
    for prefix in addresses {
        params.subject_alt_names.push(if prefix.is_host() {
            SanType::IpAddress(prefix.address())
        } else {
            SanType::URI(format!("{PREFIX_URI}{prefix}").try_into()?)
        });
    }
    params.not_before = not_before.into();
    params.not_after = (not_before + lifetime).into();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?.pem();
    let written = Certificate::from_pem(&certificate).context("the new certificate is not what was asked for")?;
    if written.name != *name || written.addresses.len() != addresses.len() {
        bail!("the new certificate is not what was asked for");
    }
    Ok(Generated { certificate, key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn name() -> BridgeName {
        "alpha".parse().unwrap()
    }

    fn made(addresses: &[&str]) -> Certificate {
        let addresses: Vec<Prefix> = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let generated = generate(&name(), &addresses, SystemTime::now(), DAY).unwrap();
        Certificate::from_pem(&generated.certificate).unwrap()
    }

    #[test]
    fn a_certificate_says_what_was_put_in() {
        let certificate = made(&["10.0.0.1", "10.1.0.0/16", "2001:db8::1", "2001:db8:1::/48"]);
        assert_eq!(certificate.name, name());
        let shown: Vec<String> = certificate.addresses.iter().map(Prefix::to_string).collect();
        assert_eq!(shown, ["10.0.0.1", "10.1.0.0/16", "2001:db8::1", "2001:db8:1::/48"]);
        assert!(certificate.is_valid_at(SystemTime::now()));
        assert!(!certificate.is_valid_at(SystemTime::now() + 2 * DAY));
        assert!(!certificate.is_valid_at(SystemTime::now() - DAY));
        assert!(certificate.has_expired_at(SystemTime::now() + 2 * DAY));
        assert!(!certificate.has_expired_at(SystemTime::now() - DAY));
        assert_eq!(certificate.fingerprint().to_string().len(), 6 + 32 * 3);
    }

    fn with_names(names: Vec<SanType>) -> anyhow::Result<Certificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alpha");
        params.subject_alt_names = names;
        Certificate::from_pem(&params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem())
    }

    #[test]
    fn names_of_other_kinds_are_ignored_and_wrong_ones_are_not() {
        let dns = SanType::DnsName("alpha.example".try_into().unwrap());
        let uri = |text: &str| SanType::URI(text.try_into().unwrap());
        let certificate = with_names(vec![dns, uri("https://example.com/"), SanType::IpAddress([10, 0, 0, 1].into())]);
        assert_eq!(certificate.unwrap().addresses, ["10.0.0.1".parse().unwrap()]);
        for bad in [
            uri("beeline://prefix/10.0.0.1/24"),
            uri("beeline://prefix/"),
            uri("beeline://host/10.0.0.1"),
            uri("beeline:x"),
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::IpAddress([0, 0, 0, 0].into()),
        ] {
            assert!(with_names(vec![bad]).is_err());
        }
        assert!(with_names(vec![]).unwrap().addresses.is_empty());
    }

    #[test]
    fn what_is_no_certificate_is_refused_with_a_reason() {
        let first = generate(&name(), &["10.0.0.1".parse().unwrap()], SystemTime::now(), DAY).unwrap();
        let twice = format!("{0}{0}", first.certificate);
        let cut = &first.certificate[..200];
        for (text, reason) in
            [("", "no certificate"), (&first.key, "no certificate"), (&twice, "more than one"), (cut, "PEM")]
        {
            let error = Certificate::from_pem(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_certificates_do_no_harm(at in 0_usize..400, value: u8) {
            let certificate = made(&["10.0.0.1", "10.1.0.0/16"]);
            let mut der = certificate.der().to_vec();
            let at = at % der.len();
            der[at] = value;
            // Either it cannot be read, or it is another certificate or the same bytes.
            if let Ok(read) = Certificate::from_der(der.clone().into()) {
                assert!(read.is(&der));
                assert_eq!(read.is(certificate.der()), der == certificate.der().as_ref());
            }
        }
    }
}
