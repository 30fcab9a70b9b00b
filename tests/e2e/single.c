/* The only file of the image `single`: shows that a sandbox needs nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    char line[256];

    if (argc > 1 && strcmp(argv[1], "cat") == 0) {
        while (fgets(line, sizeof(line), stdin))
            fputs(line, stdout);
        return 0;
    }
    printf("single uid=%d args=%d\n", (int)getuid(), argc - 1);
    fprintf(stderr, "to stderr\n");
    return argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0;
}
