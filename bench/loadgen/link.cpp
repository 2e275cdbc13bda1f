#include "link.hpp"

Totals operator-(const Totals& later, const Totals& earlier) {
    return {later.written_bytes - earlier.written_bytes,
            later.read_bytes - earlier.read_bytes,
            later.messages_out - earlier.messages_out,
            later.messages_in - earlier.messages_in,
            later.bulks_out - earlier.bulks_out,
            later.bulks_in - earlier.bulks_in,
            later.traffic - earlier.traffic,
            later.usage - earlier.usage};
}

std::string json(const Totals& totals, const std::string& side) {
    std::string members;
    const auto add = [&](const char* name, std::uint64_t value) {
        members += (members.empty() ? "\"" : ", \"") + side + "_" + name + "\": " + std::to_string(value);
    };
    add("written_bytes", totals.written_bytes);
    add("read_bytes", totals.read_bytes);
    add("messages_out", totals.messages_out);
    add("messages_in", totals.messages_in);
    add("bulks_out", totals.bulks_out);
    add("bulks_in", totals.bulks_in);
    add("tcp_sent_bytes", totals.traffic.sent_bytes);
    add("tcp_received_bytes", totals.traffic.received_bytes);
    add("segments_out", totals.traffic.segments_out);
    add("segments_in", totals.traffic.segments_in);
    add("data_segments_out", totals.traffic.data_segments_out);
    add("data_segments_in", totals.traffic.data_segments_in);
    char text[64];
    std::snprintf(text, sizeof text, ", \"%s_cpu_s\": %.6f", side.c_str(), totals.usage.cpu_s);
    return members + text;
}

Totals Links::totals() const {
    Totals sum;
    for (const Link& link : links_) {
        sum.written_bytes += link.totals.written_bytes;
        sum.read_bytes += link.totals.read_bytes;
        sum.messages_out += link.totals.messages_out;
        sum.messages_in += link.totals.messages_in;
        sum.bulks_out += link.totals.bulks_out;
        sum.bulks_in += link.totals.bulks_in;
        sum.traffic = sum.traffic + traffic_of(link.fd());
    }
    sum.usage = net::usage(0);
    return sum;
}
