//! Programs into which the library does not get, or which are hard to look at, go on with their connections.

cases! { images:
    a_program_of_another_effective_user_goes_on
    a_program_without_proc_goes_on;
}
