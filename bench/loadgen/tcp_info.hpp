// What the kernel counted on a connection. In a file of its own: linux/tcp.h, which knows the newer members,
// does not go together with netinet/tcp.h.
#pragma once

#include <cstdint>

struct Traffic {
    std::uint64_t sent_bytes = 0;  // of the stream, without headers
    std::uint64_t received_bytes = 0;
    std::uint64_t segments_out = 0;  // with and without data
    std::uint64_t segments_in = 0;
    std::uint64_t data_segments_out = 0;
    std::uint64_t data_segments_in = 0;
};

Traffic operator+(const Traffic& one, const Traffic& other);
Traffic operator-(const Traffic& later, const Traffic& earlier);

Traffic traffic_of(int fd);
