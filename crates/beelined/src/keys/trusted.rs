//! The directory of trusted certificates: `NAME.crt`, one a peer.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, bail};

use super::Certificate;
use crate::config::{Private, read_guarded};
use crate::name::BridgeName;

/// As many files as are looked at.
const CERTIFICATES_MAX: usize = 4096;

/// The certificates in the directory, as they were when it was read.
#[derive(Clone, Debug, Default)]
pub struct Trusted {
    by_name: BTreeMap<BridgeName, Certificate>,
}

/// The file name of a peer's certificate.
pub fn file_name(name: &BridgeName) -> String {
    format!("{name}.crt")
}

impl Trusted {
    /// Reads the directory. Files that will not do are left out, with what is wrong with them, since one bad file must
    /// not separate this bridge from all others. Expired ones are kept: they say "expired" to the administrator, and
    /// are refused when they are shown.
    pub fn read(directory: &Path) -> anyhow::Result<(Self, Vec<String>)> {
        let (mut trusted, mut complaints) = (Self::default(), Vec::new());
        crate::config::check_directory(directory)?;
        let entries = fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        for (number, entry) in entries.enumerate() {
            let path = entry?.path();
            if number == CERTIFICATES_MAX {
                bail!("{} holds more than {CERTIFICATES_MAX} files", directory.display());
            }
            if path.extension().is_none_or(|extension| extension != "crt") {
                continue;
            }
            match read_one(&path) {
                Ok(certificate) => trusted.insert(certificate),
                Err(error) => complaints.push(format!("{} is left out: {error:#}", path.display())),
            }
        }
        complaints.sort();
        Ok((trusted, complaints))
    }

    /// Reads the directory when the bridge starts. The usual one need not be there yet, as before the first `beelined
    /// trust`: it holds none then. Any other is one that was asked for, and may be mistyped.
    pub fn read_first(directory: &Path, usual: &Path) -> anyhow::Result<(Self, Vec<String>)> {
        let is_missing = || directory.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if directory == usual && is_missing() {
            let directory = directory.display();
            let complaint =
                format!("no certificate is trusted: {directory} is not there, and `beelined trust` makes it");
            return Ok((Self::default(), vec![complaint]));
        }
        Self::read(directory)
    }

    /// Adds a certificate.
    pub fn insert(&mut self, certificate: Certificate) {
        self.by_name.insert(certificate.name.clone(), certificate);
    }

    /// The certificate that is exactly these bytes.
    pub fn find(&self, der: &[u8]) -> Option<&Certificate> {
        self.by_name.values().find(|certificate| certificate.is(der))
    }

    /// The certificate of that name.
    pub fn get(&self, name: &BridgeName) -> Option<&Certificate> {
        self.by_name.get(name)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Certificate> {
        self.by_name.values()
    }
}

fn read_one(path: &Path) -> anyhow::Result<Certificate> {
    let certificate = Certificate::from_pem(&read_guarded(path, Private::No, None)?)?;
    let wanted = file_name(&certificate.name);
    if path.file_name().is_none_or(|name| name != wanted.as_str()) {
        bail!("it is the certificate of `{}` and should be called {wanted}", certificate.name);
    }
    Ok(certificate)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn pem(name: &str) -> String {
        let lifetime = Duration::from_secs(60);
        let addresses = ["10.0.0.1".parse().unwrap()];
        super::super::generate(&name.parse().unwrap(), &addresses, SystemTime::now(), lifetime).unwrap().certificate
    }

    #[test]
    fn good_files_are_read_and_bad_ones_are_left_out_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        file("beta.crt", &pem("beta"));
        file("README", "nothing");
        file("broken.crt", "nothing");
        file("gamma.crt", &pem("delta"));
        let open = file("epsilon.crt", &pem("epsilon"));
        fs::set_permissions(open, fs::Permissions::from_mode(0o666)).unwrap();
        let (trusted, complaints) = Trusted::read(directory.path()).unwrap();
        let names: Vec<&str> = trusted.iter().map(|certificate| certificate.name.as_str()).collect();
        assert_eq!(names, ["beta"]);
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(complaints[0].contains("no certificate"), "{complaints:?}");
        assert!(complaints[1].contains("others can write"), "{complaints:?}");
        assert!(complaints[2].contains("should be called delta.crt"), "{complaints:?}");
        let beta = trusted.get(&"beta".parse().unwrap()).unwrap();
        assert_eq!(trusted.find(beta.der()), Some(beta));
        assert_eq!(trusted.find(b"x"), None);
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(Trusted::read(directory.path()).is_err());
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(Trusted::read(&file).is_err());
    }

    #[test]
    fn the_usual_directory_holds_none_at_the_start_if_it_is_not_there_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let none = directory.path().join("none");
        let (trusted, complaints) = Trusted::read_first(&none, &none).unwrap();
        assert_eq!(trusted.iter().count(), 0);
        assert!(complaints.len() == 1 && complaints[0].contains("`beelined trust` makes it"), "{complaints:?}");
        assert!(Trusted::read_first(&none, &directory.path().join("usual")).is_err(), "one that was asked for");
        assert!(Trusted::read(&none).is_err(), "not at the start");
        let elsewhere = directory.path().join("link");
        std::os::unix::fs::symlink(&none, &elsewhere).unwrap();
        assert!(Trusted::read_first(&elsewhere, &elsewhere).is_err(), "a link that leads nowhere");
        fs::create_dir(&none).unwrap();
        fs::write(none.join("beta.crt"), pem("beta")).unwrap();
        assert_eq!(Trusted::read_first(&none, &none).unwrap().0.iter().count(), 1);
    }
}
