/* A libaio, as far as it submits: by a system call of its own, past every hook. */
long io_submit(unsigned long context, long count, void **requests) {
    long result = 209;
    __asm__ volatile("syscall" : "+a"(result) : "D"(context), "S"(count), "d"(requests) : "rcx", "r11", "memory");
    return result;
}
