//! Starting other programs.
//!
//! Before a program starts, the connections that it inherits are lent to it, and the library stays in its
//! environment ([`beeline_sockets::life`]). `execl` and its relatives take their arguments one by one: a stub lays
//! those that came in registers before those on the stack, and there the list is.

use core::ffi::CStr;

use beeline_sockets::life::environment::{self, List};
use beeline_sockets::life::image::{Image, Program};
use beeline_sockets::{Outcome, in_first_page, life};
use libc::{c_char, c_int, c_void, pid_t};

use crate::real::hooks;

pub(super) type Text = *const c_char;

unsafe extern "C" {
    pub(super) static mut environ: List;
}

/// Notes what the program was started with, and hides from it what the library needs of that.
///
/// # Safety
/// What the dynamic linker gives a constructor. For the library's constructor alone.
pub unsafe fn note_environment(count: c_int, arguments: List, list: List) {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    let here = note_environment as *const c_void;
    // SAFETY: an address within this library and a live struct; the name it gives is a string that lives as long as the
    // library. The caller guarantees the lists; libc's variable is one.
    unsafe {
        if libc::dladdr(here, &raw mut found) != 0
            && !found.dli_fname.is_null()
            && environment::note(list, CStr::from_ptr(found.dli_fname).to_bytes())
        {
            environment::hide(count, arguments, list.cast_mut().cast(), (&raw mut environ).cast());
        }
    }
}

/// Calls libc's function of a name with these arguments; `$failure` if there is none.
macro_rules! real {
    ($name:ident($($argument:expr),*), or $failure:expr) => {
        match reals::$name.get() {
            // SAFETY: the app's arguments, passed on.
            Some(real) => unsafe { real($($argument),*) },
            None => {
                crate::real::fail(libc::ENOSYS);
                $failure
            }
        }
    };
}

/// Looks at the program that a call names.
///
/// # Safety
/// `path` as for the call.
unsafe fn look(path: Text, program: impl FnOnce(&CStr) -> Program<'_>) -> Image {
    if in_first_page(path as usize) {
        return Image::Takes;
    }
    // SAFETY: the caller guarantees a string; the first page is never mapped.
    life::look(program(unsafe { CStr::from_ptr(path) }))
}

fn at_working_directory(path: &CStr) -> Program<'_> {
    Program::At(libc::AT_FDCWD, path)
}

fn in_path(file: &CStr) -> Program<'_> {
    Program::Named(file)
}

/// Looks at the program of execveat(2).
///
/// # Safety
/// `path` as for execveat(2).
unsafe fn look_at(directory: c_int, path: Text, flags: c_int) -> Image {
    // SAFETY: forwarded.
    unsafe {
        look(path, |path| {
            let is_open = flags & libc::AT_EMPTY_PATH != 0 && path.is_empty();
            if is_open { Program::Open(directory) } else { Program::At(directory, path) }
        })
    }
}

/// Becomes another program, or fails.
///
/// # Safety
/// `list` as for execve(2).
unsafe fn become_program(image: Image, list: List, exec: impl Fn(List) -> c_int) -> Outcome {
    // SAFETY: forwarded.
    let kept = unsafe { environment::kept(list, image) };
    let become_it = |image, list| {
        let loan = life::before_exec(image);
        let result = exec(list);
        life::exec_failed(&loan);
        result
    };
    let mut result = become_it(image, kept);
    // SAFETY: libc's per-thread errno, which a failure has set.
    if result == -1 && kept != list && unsafe { *libc::__errno_location() } == libc::E2BIG {
        // There is room for what the app wants, and for nothing of ours.
        result = become_it(Image::Ignores, list);
    }
    if kept != list {
        environment::give_back(kept);
    }
    // A failure has set errno.
    Outcome::Done(result as isize)
}

/// Spawns a process.
///
/// # Safety
/// `list` as for posix_spawn(3).
unsafe fn spawn(image: Image, actions: *const c_void, list: List, spawn: impl Fn(List) -> c_int) -> Outcome {
    life::count_spawn();
    // SAFETY: forwarded.
    let kept = unsafe { environment::kept(list, image) };
    let spawn_it = |image, list| {
        let loan = life::before_spawn(image, &life::Actions::by_list(actions as usize));
        let result = spawn(list);
        life::after_spawn(&loan, result == 0);
        result
    };
    let mut result = spawn_it(image, kept);
    if result == libc::E2BIG && kept != list {
        // As above.
        result = spawn_it(Image::Ignores, list);
    }
    if kept != list {
        environment::give_back(kept);
    }
    Outcome::Done(result as isize)
}

hooks! {
    fn execve: (path: Text, arguments: List, list: List) -> c_int [] =>
        become_program(look(path, at_working_directory), list, |list| real!(execve(path, arguments, list), or -1));

    fn execv: (path: Text, arguments: List) -> c_int [] =>
        become_program(look(path, at_working_directory), environ, |list| real!(execve(path, arguments, list), or -1));

    fn execvp: (file: Text, arguments: List) -> c_int [] =>
        become_program(look(file, in_path), environ, |list| real!(execvpe(file, arguments, list), or -1));

    fn execvpe: (file: Text, arguments: List, list: List) -> c_int [] =>
        become_program(look(file, in_path), list, |list| real!(execvpe(file, arguments, list), or -1));

    fn fexecve: (fd: c_int, arguments: List, list: List) -> c_int [] =>
        become_program(life::look(Program::Open(fd)), list, |list| real!(fexecve(fd, arguments, list), or -1));

    fn execveat: (directory: c_int, path: Text, arguments: List, list: List, flags: c_int) -> c_int [] =>
        become_program(look_at(directory, path, flags), list, |list| {
            real!(execveat(directory, path, arguments, list, flags), or -1)
        });

    fn posix_spawn: (pid: *mut pid_t, path: Text, actions: *const c_void, attributes: *const c_void, arguments: List, list: List) -> c_int [] =>
        spawn(look(path, at_working_directory), actions, list, |list| {
            real!(posix_spawn(pid, path, actions, attributes, arguments, list), or libc::ENOSYS)
        });

    fn posix_spawnp: (pid: *mut pid_t, file: Text, actions: *const c_void, attributes: *const c_void, arguments: List, list: List) -> c_int [] =>
        spawn(look(file, in_path), actions, list, |list| {
            real!(posix_spawnp(pid, file, actions, attributes, arguments, list), or libc::ENOSYS)
        });

    fn posix_spawn_file_actions_adddup2: (actions: *mut c_void, fd: c_int, to: c_int) -> c_int [] => {
        life::list_names(actions as usize, fd, to);
        Outcome::Kernel
    };

    fn posix_spawn_file_actions_init: (actions: *mut c_void) -> c_int [] => {
        life::list_begins(actions as usize);
        Outcome::Kernel
    };

    fn posix_spawn_file_actions_destroy: (actions: *mut c_void) -> c_int [] => {
        life::list_begins(actions as usize);
        Outcome::Kernel
    };

    fn posix_spawn_file_actions_addclose: (actions: *mut c_void, fd: c_int) -> c_int [] => {
        life::list_closes(actions as usize, fd..=fd);
        Outcome::Kernel
    };

    fn posix_spawn_file_actions_addclosefrom_np: (actions: *mut c_void, lowest: c_int) -> c_int [] => {
        life::list_closes(actions as usize, lowest..=c_int::MAX);
        Outcome::Kernel
    };
}

/// Makes a function that takes its arguments one by one, and hands the list of them to `$with`.
macro_rules! listed {
    ($name:ident, $with:ident) => {
        /// exec(3).
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                // The arguments on the stack begin above the return address.
                "pop rax",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push rax",
                "call {with}",
                "pop rcx",
                "add rsp, 40",
                "push rcx",
                "ret",
                with = sym $with,
            )
        }

        /// exec(3).
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub sp, sp, #64",
                "stp x30, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "add x1, sp, #8",
                "bl {with}",
                "ldr x30, [sp]",
                "add sp, sp, #64",
                "ret",
                with = sym $with,
            )
        }
    };
}

listed!(execl, execv);
listed!(execlp, execvp);
listed!(execle, execle_with);

/// The environment stands behind the end of the arguments.
unsafe extern "C" fn execle_with(path: Text, arguments: List) -> c_int {
    // SAFETY: the app's arguments, which end in a null pointer, and the environment after it.
    unsafe {
        let mut end = arguments;
        while !(*end).is_null() {
            end = end.add(1);
        }
        execve(path, arguments, end.add(1).cast::<List>().read())
    }
}
