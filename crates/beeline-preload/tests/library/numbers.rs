//! Numbers that change what they lead to while another thread uses them, or is given them.

cases! { swaps:
    a_number_is_written_on_as_it_changes
    a_number_that_another_thread_is_given_is_its_own;
}
