/* A library that says something on a connection when its program ends. */
#include <unistd.h>

int last_words_on = -1;

__attribute__((destructor)) static void say(void) {
    if (last_words_on >= 0 && write(last_words_on, "goodbye", 7) != 7) _exit(66);
}
