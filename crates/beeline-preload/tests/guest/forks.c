/*
 * Page faults that forks cost parent and child in a program that listens: `forks WARM FORKS`, whose children end at
 * once, and `forks WARM FORKS serves`, which forks for each connection and prints the port first. Prints both; the
 * first WARM forks do not count.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void echo(int connection)
{
	char byte;

	if (recv(connection, &byte, 1, 0) != 1 || send(connection, &byte, 1, 0) != 1)
		_exit(1);
}

/* `listener` is -1 where nobody is to be served. */
static void fork_often(int times, int listener)
{
	for (int done = 0; done < times; done++) {
		int connection = listener < 0 ? -1 : accept(listener, NULL, NULL);
		pid_t child = listener >= 0 && connection < 0 ? -1 : fork();
		int status;

		if (child == 0) {
			if (connection >= 0)
				echo(connection);
			_exit(0);
		}
		if (connection >= 0)
			close(connection);
		if (child < 0 || waitpid(child, &status, 0) != child || status)
			exit(1);
	}
}

static long faults(int of)
{
	struct rusage usage;

	return getrusage(of, &usage) ? exit(1), 0 : usage.ru_minflt;
}

int main(int count, char **arguments)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int serves = count > 3;

	if (count < 3 || bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 8) ||
	    getsockname(listener, (struct sockaddr *)&address, &length))
		return 1;
	if (serves)
		printf("%d\n", ntohs(address.sin_port)), fflush(stdout);
	fork_often(atoi(arguments[1]), serves ? listener : -1);
	long parent = faults(RUSAGE_SELF), child = faults(RUSAGE_CHILDREN);
	fork_often(atoi(arguments[2]), serves ? listener : -1);
	printf("%ld %ld\n", faults(RUSAGE_SELF) - parent, faults(RUSAGE_CHILDREN) - child);
	return 0;
}
