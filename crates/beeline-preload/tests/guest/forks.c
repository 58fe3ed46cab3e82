/* Page faults that a fork costs parent and child in a program that listens: `forks`, prints both, in all of FORKS. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WARM = 20, FORKS = 100 };

static void fork_often(int times)
{
	for (int done = 0; done < times; done++) {
		pid_t child = fork();
		if (child == 0)
			_exit(0);
		if (child < 0 || waitpid(child, NULL, 0) != child)
			exit(1);
	}
}

static long faults(int of)
{
	struct rusage usage;

	return getrusage(of, &usage) ? exit(1), 0 : usage.ru_minflt;
}

int main(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 8))
		return 1;
	fork_often(WARM);
	long parent = faults(RUSAGE_SELF), child = faults(RUSAGE_CHILDREN);
	fork_often(FORKS);
	printf("%ld %ld\n", faults(RUSAGE_SELF) - parent, faults(RUSAGE_CHILDREN) - child);
	return 0;
}
