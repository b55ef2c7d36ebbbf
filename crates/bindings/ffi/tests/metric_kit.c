/* Adds a MetricKit payload. Arguments: store, the payload's file (or "-"), and how to end. */
#include <coroner.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char payload[1 << 16];

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    if (coroner_add_metric_kit_payload((const uint8_t *)"{}", 2) != CORONER_STATUS_NOT_INSTALLED)
        return 3;
    coroner_config *config = coroner_config_new("com.example.shop");
    coroner_config_set_store_dir(config, argv[1]);
    if (coroner_install(config) != CORONER_STATUS_OK) {
        fprintf(stderr, "%s\n", coroner_last_error());
        return 4;
    }
    if (strcmp(argv[3], "killed") == 0)
        raise(SIGKILL);
    FILE *file = fopen(argv[2], "rb");
    if (file == NULL)
        return 5;
    size_t length = fread(payload, 1, sizeof payload, file);
    fclose(file);
    coroner_status given = coroner_add_metric_kit_payload((const uint8_t *)payload, length);
    if (given != CORONER_STATUS_OK)
        printf("%s\n", coroner_last_error());
    if (coroner_add_metric_kit_payload(NULL, 0) != CORONER_STATUS_INVALID_ARGUMENT)
        return 6;
    if (coroner_flush(30000) != CORONER_STATUS_OK)
        return 7;
    printf("status %d\n", (int)given);
    return 0;
}
