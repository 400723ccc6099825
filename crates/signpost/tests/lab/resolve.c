/* Prints the IPv4 addresses of a name, one a line, as the C library's resolver finds them; nothing for a name that it does not find. */
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

int main(int argc, char **argv)
{
	struct addrinfo hints, *found, *one;
	char text[INET_ADDRSTRLEN];

	if (argc != 2)
		return 2;
	memset(&hints, 0, sizeof hints);
	hints.ai_family = AF_INET;
	hints.ai_socktype = SOCK_STREAM;
	if (getaddrinfo(argv[1], NULL, &hints, &found))
		return 0;
	for (one = found; one; one = one->ai_next) {
		struct sockaddr_in *address = (struct sockaddr_in *)one->ai_addr;
		puts(inet_ntop(AF_INET, &address->sin_addr, text, sizeof text));
	}
	freeaddrinfo(found);
	return 0;
}
