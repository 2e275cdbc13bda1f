/* Publishes at QoS 0 through libmosquitto for some seconds, then waits until the broker has read all of it:
 * a last message at QoS 1 is acknowledged behind the others. Prints one line of JSON.
 *
 *   libmosquitto-publish PORT TOPIC SIZE SECONDS
 */
#include <mosquitto.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static atomic_int is_connected, acknowledged;

static void on_connect(struct mosquitto *client, void *data, int reason) {
    (void)client, (void)data;
    if (reason == 0) is_connected = 1;
}

static void on_publish(struct mosquitto *client, void *data, int id) {
    (void)client, (void)data;
    acknowledged = id;
}

static double now_s(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL); }

static void check(int error, const char *what) {
    if (error == MOSQ_ERR_SUCCESS) return;
    fprintf(stderr, "%s: %s\n", what, mosquitto_strerror(error));
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: %s PORT TOPIC SIZE SECONDS\n", argv[0]);
        return 2;
    }
    const char *topic = argv[2];
    const int size = atoi(argv[3]);
    const double seconds = atof(argv[4]);
    char *payload = malloc((size_t)size + 1);
    if (payload == NULL) return 1;
    memset(payload, 'x', (size_t)size);

    mosquitto_lib_init();
    struct mosquitto *client = mosquitto_new(NULL, true, NULL);
    mosquitto_connect_callback_set(client, on_connect);
    mosquitto_publish_callback_set(client, on_publish);
    mosquitto_int_option(client, MOSQ_OPT_TCP_NODELAY, 1);
    check(mosquitto_connect(client, "127.0.0.1", atoi(argv[1]), 60), "connect");
    check(mosquitto_loop_start(client), "loop_start");
    while (!is_connected) nap();

    const double begin = now_s();
    long sent = 0;
    for (; (sent & 63) || now_s() - begin < seconds; ++sent)
        check(mosquitto_publish(client, NULL, topic, size, payload, 0, false), "publish");
    int last = 0;
    check(mosquitto_publish(client, &last, topic, size, payload, 1, false), "publish");
    ++sent;
    while (acknowledged != last) nap();
    const double took = now_s() - begin;
    printf("{\"messages\": %ld, \"seconds\": %.6f, \"rate\": %.1f}\n", sent, took, (double)sent / took);

    mosquitto_disconnect(client);
    mosquitto_loop_stop(client, false);
    mosquitto_destroy(client);
    mosquitto_lib_cleanup();
    free(payload);
    return 0;
}
