/* A libaio, as far as it submits: by a system call of its own, past every hook. And a library that needs it (with NEEDS_IT). */
#ifdef NEEDS_IT
long io_submit(unsigned long context, long count, void **requests);
long submits_nothing(void) { return io_submit(0, 0, (void **)0); }
#else
long io_submit(unsigned long context, long count, void **requests) {
    long result = 209;
    __asm__ volatile("syscall" : "+a"(result) : "D"(context), "S"(count), "d"(requests) : "rcx", "r11", "memory");
    return result;
}
#endif
