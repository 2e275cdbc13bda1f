#include "tcp_info.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <functional>
#include <system_error>

namespace {

template <typename Operation>
Traffic member_by_member(const Traffic& a, const Traffic& b, Operation&& combine) {
    return {combine(a.sent_bytes, b.sent_bytes),
            combine(a.received_bytes, b.received_bytes),
            combine(a.segments_out, b.segments_out),
            combine(a.segments_in, b.segments_in),
            combine(a.data_segments_out, b.data_segments_out),
            combine(a.data_segments_in, b.data_segments_in)};
}

}  // namespace

Traffic operator+(const Traffic& one, const Traffic& other) {
    return member_by_member(one, other, std::plus<std::uint64_t>());
}

Traffic operator-(const Traffic& later, const Traffic& earlier) {
    return member_by_member(later, earlier, std::minus<std::uint64_t>());
}

Traffic traffic_of(int fd) {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0)
        throw std::system_error(errno, std::generic_category(), "TCP_INFO");
    return {info.tcpi_bytes_sent,   info.tcpi_bytes_received,     info.tcpi_segs_out,
            info.tcpi_segs_in,      info.tcpi_data_segs_out,      info.tcpi_data_segs_in};
}
