//! Becoming somebody less powerful.

#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, bail};
use nix::unistd::{Gid, Uid};

/// A user of this host.
#[derive(Clone, Debug)]
pub struct User {
    name: String,
    uid: Uid,
    gid: Gid,
}

impl User {
    /// The user of that name; `None` if there is none.
    pub fn find(name: &str) -> anyhow::Result<Option<Self>> {
        let found = nix::unistd::User::from_name(name).with_context(|| format!("cannot look up the user `{name}`"))?;
        Ok(found.map(|user| Self { name: user.name, uid: user.uid, gid: user.gid }))
    }

    /// Whom to become, if the process is not that user already.
    pub fn to_become(name: Option<&str>) -> anyhow::Result<Option<Self>> {
        let Some(name) = name else { return Ok(None) };
        let user = Self::find(name)?.with_context(|| format!("there is no user `{name}`"))?;
        let current = nix::unistd::geteuid();
        if current == user.uid {
            return Ok(None);
        }
        if !current.is_root() {
            bail!("only root can become `{name}`");
        }
        Ok(Some(user))
    }

    /// Makes the file theirs; a symbolic link itself, not what it leads to.
    pub fn give(&self, path: &Path) -> anyhow::Result<()> {
        std::os::unix::fs::lchown(path, Some(self.uid.as_raw()), Some(self.gid.as_raw()))
            .with_context(|| format!("cannot give {} to `{}`", path.display(), self.name))
    }

    /// Becomes this user for good. Capabilities go with root's user id.
    pub fn become_it(&self) -> anyhow::Result<()> {
        let name = std::ffi::CString::new(self.name.as_str())?;
        nix::unistd::initgroups(&name, self.gid)
            .and_then(|()| nix::unistd::setresgid(self.gid, self.gid, self.gid))
            .and_then(|()| nix::unistd::setresuid(self.uid, self.uid, self.uid))
            .with_context(|| format!("cannot become `{}`", self.name))?;
        if nix::unistd::setuid(Uid::from_raw(0)).is_ok() {
            bail!("root's power is still there after becoming `{}`", self.name);
        }
        Ok(())
    }

    /// Their number.
    pub fn uid(&self) -> u32 {
        self.uid.as_raw()
    }

    /// The user's name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_somebody_else_is_to_become() {
        assert!(User::to_become(None).unwrap().is_none());
        let own = nix::unistd::User::from_uid(nix::unistd::geteuid()).unwrap().unwrap();
        assert!(User::to_become(Some(&own.name)).unwrap().is_none());
        assert!(User::to_become(Some("no-such-user-here")).unwrap_err().to_string().contains("there is no user"));
        let other = if nix::unistd::geteuid().is_root() { "nobody" } else { "root" };
        assert_eq!(User::to_become(Some(other)).is_ok(), nix::unistd::geteuid().is_root());
    }
}
