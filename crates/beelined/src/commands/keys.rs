//! `beelined keygen`, `trust`, `distrust`, `trusted`: who is who.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use beeline_status::layout::Table;
use serde::Serialize;
use time::format_description::well_known::Rfc3339;

use super::output::{print, print_json};
use crate::cli::{DirectoryArgs, DistrustArgs, KeygenArgs, TrustArgs, TrustedArgs};
use beelined::admin::{self, Request};
use beelined::config::{CertificatePaths, Identity};
use beelined::keys::{ADDRESSES_MAX, Certificate, Trusted, file_name};
use beelined::log;
use beelined::name::BridgeName;
use beelined::prefix::Prefix;
use beelined::user::User;

/// A certificate is valid from a little before it is made: clocks differ.
const CLOCKS_DIFFER: Duration = Duration::from_secs(3600);

const CERTIFICATE_BYTES_MAX: u64 = 1 << 20;

/// Makes a key and its certificate.
pub fn generate(arguments: &KeygenArgs) -> anyhow::Result<()> {
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => BridgeName::of_host().context("give a name with --name")?,
    };
    let mut addresses = arguments.addresses.clone();
    addresses.sort();
    addresses.dedup();
    if addresses.len() > ADDRESSES_MAX {
        bail!("a certificate holds at most {ADDRESSES_MAX} addresses");
    }
    refuse_wide(&addresses, arguments.force)?;
    let (key, certificate) = (arguments.out.join("beelined.key"), arguments.out.join("beelined.crt"));
    if !arguments.force
        && let Some(there) = [&key, &certificate].into_iter().find(|path| path.symlink_metadata().is_ok())
    {
        bail!(
            "{} is there already; --force replaces it, and then every peer has to trust the new one",
            there.display()
        );
    }
    let lifetime = Duration::from_secs(u64::from(arguments.days) * 86_400);
    let generated =
        beelined::keys::generate(&name, &addresses, SystemTime::now() - CLOCKS_DIFFER, lifetime + CLOCKS_DIFFER)?;
    make_directory(&arguments.out)?;
    write_whole(&key, &generated.key, 0o600)?;
    write_whole(&certificate, &generated.certificate, 0o644)?;
    let mut text = format!("Key of `{name}`: {}\n", key.display());
    if nix::unistd::geteuid().is_root() {
        match User::find(&arguments.user)? {
            Some(user) => user.give(&key)?,
            None => text += &format!("It belongs to root: there is no user `{}` on this host.\n", arguments.user),
        }
    }
    text += &format!("Certificate: {}\n", certificate.display());
    text += &describe(&Certificate::from_pem(&generated.certificate)?)?;
    text += "Take the certificate to each peer, and there: beelined trust beelined.crt\n";
    print(&text)
}

/// Trusts a certificate.
pub fn trust(arguments: &TrustArgs) -> anyhow::Result<()> {
    let path = &arguments.certificate;
    let certificate = read(path).with_context(|| format!("cannot use {}", path.display()))?;
    let (directory, own) = directory(&arguments.directory)?;
    let now = SystemTime::now();
    if certificate.has_expired_at(now) {
        bail!("the certificate of `{}` has expired, on {}", certificate.name, date(&certificate)?);
    }
    if certificate.addresses.is_empty() {
        bail!("the certificate of `{}` names no address, so that bridge could not speak for anybody", certificate.name);
    }
    if own.as_ref().is_some_and(|own| own.name == certificate.name) {
        bail!("`{}` is this bridge's own name", certificate.name);
    }
    refuse_wide(&certificate.addresses, arguments.force)?;
    make_directory(&directory)?;
    let (trusted, complaints) = Trusted::read(&directory)?;
    let other = trusted.get(&certificate.name).filter(|other| *other != &certificate);
    if let Some(other) = other.filter(|_| !arguments.force) {
        bail!(
            "another certificate of `{}` is trusted ({}); --force replaces it with this one ({})",
            other.name,
            other.fingerprint(),
            certificate.fingerprint()
        );
    }
    let others = trusted.iter().chain(&own).filter(|other| other.name != certificate.name);
    refuse_overlaps(&certificate, others, arguments.force)?;
    let file = directory.join(file_name(&certificate.name));
    write_whole(&file, &pem(&certificate), 0o644)?;
    let mut text = describe(&certificate)?;
    text += &format!("It is trusted now ({}). Compare the fingerprint with that on its host.\n", file.display());
    complaints.iter().for_each(|complaint| text += &format!("Note: {complaint}\n"));
    text += &tell_bridge(&arguments.directory);
    print(&text)
}

/// Trusts a certificate no longer.
pub fn distrust(arguments: &DistrustArgs) -> anyhow::Result<()> {
    let (directory, _) = directory(&arguments.directory)?;
    let file = directory.join(file_name(&arguments.name));
    fs::remove_file(&file).map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow::anyhow!("no certificate of `{}` is trusted", arguments.name),
        _ => anyhow::Error::new(error).context(format!("cannot remove {}", file.display())),
    })?;
    let told = tell_bridge(&arguments.directory);
    print(&format!("`{}` is no longer trusted.\n{told}", arguments.name))
}

#[derive(Serialize)]
struct Listed {
    name: String,
    addresses: Vec<Prefix>,
    expires: String,
    days_left: i64,
    fingerprint: String,
}

/// Lists the trusted certificates.
pub fn list(arguments: &TrustedArgs) -> anyhow::Result<()> {
    let (directory, _) = directory(&arguments.directory)?;
    let (trusted, complaints) =
        if directory.exists() { Trusted::read(&directory)? } else { (Trusted::default(), Vec::new()) };
    complaints.iter().for_each(log::line);
    let listed = trusted.iter().map(|certificate| {
        Ok(Listed {
            name: certificate.name.to_string(),
            addresses: certificate.addresses.clone(),
            expires: date(certificate)?,
            days_left: certificate.days_left(),
            fingerprint: certificate.fingerprint().to_string(),
        })
    });
    let listed: Vec<Listed> = listed.collect::<anyhow::Result<_>>()?;
    if arguments.json {
        return print_json(&listed);
    }
    if listed.is_empty() {
        return print(&format!("No certificate is trusted ({} holds none).\n", directory.display()));
    }
    let mut table = Table::new(&["NAME", "SPEAKS FOR", "EXPIRES", "FINGERPRINT"], &[0, 1, 2, 3]);
    for one in listed {
        let expires = if one.days_left < 0 { format!("{} (EXPIRED)", one.expires) } else { one.expires };
        table.row([&one.name, &join(&one.addresses), &expires, &one.fingerprint]);
    }
    let mut text = String::new();
    table.write_to(&mut text);
    print(&text)
}

/// The directory of trusted certificates, and this bridge's own certificate if it has one.
fn directory(arguments: &DirectoryArgs) -> anyhow::Result<(PathBuf, Option<Certificate>)> {
    let paths = match arguments.config.read()?.map(|config| config.identity) {
        None => CertificatePaths::default(),
        Some(Identity::Certificates(paths)) => paths,
        Some(Identity::Insecure { .. }) if arguments.trusted.is_some() => CertificatePaths::default(),
        Some(Identity::Insecure { .. }) => {
            bail!("{} says `insecure = true`: no certificate counts", arguments.config.config.display())
        }
    };
    let own = read(&paths.certificate).ok();
    Ok((arguments.trusted.clone().unwrap_or(paths.trusted), own))
}

/// Reads a certificate that may come from anywhere: unlike those that are in force, it need not be ours.
fn read(path: &Path) -> anyhow::Result<Certificate> {
    let mut text = String::new();
    File::open(path)?.take(CERTIFICATE_BYTES_MAX).read_to_string(&mut text)?;
    Certificate::from_pem(&text)
}

fn refuse_wide(addresses: &[Prefix], force: bool) -> anyhow::Result<()> {
    match addresses.iter().find(|prefix| prefix.is_wide()) {
        Some(wide) if !force => bail!("{wide} is a great many addresses for one bridge; --force if it is meant"),
        _ => Ok(()),
    }
}

fn refuse_overlaps<'a>(
    certificate: &Certificate,
    others: impl Iterator<Item = &'a Certificate>,
    force: bool,
) -> anyhow::Result<()> {
    for other in others.filter(|_| !force) {
        // A prefix within another's wider one is ordinary routing; the same one twice is a mistake, or a lie.
        if let Some(both) = certificate.addresses.iter().find(|prefix| other.addresses.contains(prefix)) {
            bail!("`{}` speaks for {both} already; --force if both shall", other.name);
        }
    }
    Ok(())
}

/// Whoever runs the bridge has to get in, whatever the umask of whoever sets it up.
fn make_directory(directory: &Path) -> anyhow::Result<()> {
    if !directory.exists() {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Writes a file that others never see half of, nor with another mode.
fn write_whole(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut draft = path.as_os_str().to_owned();
        draft.push(".new");
        // Left by somebody who was interrupted; its mode may be anything.
        if let Err(error) = fs::remove_file(&draft)
            && error.kind() != ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&draft)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&draft, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Asks a running bridge to look. Without one there is nothing to do.
fn tell_bridge(arguments: &DirectoryArgs) -> String {
    let socket = crate::cli::SocketArgs { socket: None, config: arguments.config.clone() };
    let Ok(path) = super::running::socket(&socket) else { return String::new() };
    if !path.exists() {
        return String::new();
    }
    match admin::ask(&path, &Request::Reload {}) {
        Ok(_) => "The running bridge knows.\n".into(),
        Err(error) => format!("The running bridge does not know yet (SIGHUP tells it): {error:#}\n"),
    }
}

fn describe(certificate: &Certificate) -> anyhow::Result<String> {
    Ok(format!(
        "  name         {}\n  speaks for   {}\n  expires      {}\n  fingerprint  {}\n",
        certificate.name,
        join(&certificate.addresses),
        date(certificate)?,
        certificate.fingerprint()
    ))
}

fn join(addresses: &[Prefix]) -> String {
    let texts: Vec<String> = addresses.iter().map(Prefix::to_string).collect();
    texts.join(", ")
}

fn date(certificate: &Certificate) -> anyhow::Result<String> {
    certificate.not_after.format(&Rfc3339).context("its date cannot be written")
}

/// What was read, and nothing that may have stood around it.
fn pem(certificate: &Certificate) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.der().to_vec()), config)
}
