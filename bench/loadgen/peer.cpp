// A peer that does next to nothing, to see how fast the load generator itself is.
//
//   relay    forwards every PUBLISH as it came and answers every handshake: the least a broker can do
//   lossy    relays, but drops one message in a thousand: the generator must notice
//   discard  answers handshakes and forgets: the ceiling of the publishing side
//   blast    sends PUBLISH batches to whoever subscribed, from its first PINGREQ on, as fast as they are
//            read: the ceiling of the receiving side

#include <signal.h>

#include <iostream>
#include <memory>
#include <set>
#include <unordered_map>

#include "commands.hpp"
#include "net.hpp"
#include "stamp.hpp"

namespace {

using wire::Packet;

enum class Mode { RELAY, LOSSY, DISCARD, BLAST };

constexpr std::size_t BLAST_PACKETS = 512;
constexpr std::uint64_t LISTENER = 0;

struct Client {
    explicit Client(net::Fd fd) : connection(std::move(fd)) {}

    net::Connection connection;
    std::string filter;
    std::uint8_t qos = 0;
    std::unique_ptr<stamp::Batch> blast;
    std::uint64_t blasted = 0;
    bool is_awaiting_write = false;
};

struct TopicHash {
    using is_transparent = void;  // look up by string_view without making a string
    std::size_t operator()(std::string_view topic) const { return std::hash<std::string_view>{}(topic); }
};

class Peer {
public:
    Peer(Mode mode, std::uint16_t port, std::size_t payload_bytes)
        : mode_(mode), payload_bytes_(payload_bytes), listener_(net::listen(port)) {
        epoll_.add(listener_.get(), EPOLLIN, LISTENER);
    }

    [[noreturn]] void serve() {
        for (;;) {
            epoll_.wait(-1, [this](std::uint64_t tag, std::uint32_t events) {
                if (tag == LISTENER)
                    accept();
                else
                    turn(tag, events);
            });
            for (const std::uint64_t tag : std::exchange(closed_, {})) forget(tag);
            for (auto& [tag, client] : clients_) flush(tag, client);
        }
    }

private:
    void accept() {
        net::Fd fd{accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (fd.get() < 0) return;
        net::set_option(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
        epoll_.add(fd.get(), EPOLLIN, ++last_tag_);
        clients_.try_emplace(last_tag_, std::move(fd));
    }

    void turn(std::uint64_t tag, std::uint32_t events) {
        Client& client = clients_.at(tag);
        try {
            if (events & ~static_cast<std::uint32_t>(EPOLLOUT))
                client.connection.receive([&](const Packet& packet) { answer(client, packet); });
        } catch (const std::system_error&) {  // reset by the generator when it is done
            closed_.insert(tag);
        }
        if (client.connection.is_closed()) closed_.insert(tag);
    }

    void answer(Client& client, const Packet& packet) {
        wire::Bytes& out = client.connection.outbox();
        switch (packet.type) {
            case wire::CONNECT:
                wire::append(out, wire::Bytes{wire::CONNACK << 4, 2, 0, 0});
                break;
            case wire::SUBSCRIBE:
                subscribe(client, packet);
                break;
            case wire::PUBLISH:
                publish(client, packet);
                break;
            case wire::PUBREC:
                wire::append_ack(out, wire::PUBREL, wire::load_u16(packet.body.data()));
                break;
            case wire::PUBREL:
                wire::append_ack(out, wire::PUBCOMP, wire::load_u16(packet.body.data()));
                break;
            case wire::PINGREQ:
                if (mode_ == Mode::BLAST) start_blast(client);
                break;
            default:
                break;
        }
    }

    void subscribe(Client& client, const Packet& packet) {
        const std::size_t length = wire::load_u16(packet.body.data() + 2);
        routes_.clear();
        client.filter.assign(reinterpret_cast<const char*>(packet.body.data()) + 4, length);
        client.qos = packet.body[4 + length];
        wire::append(client.connection.outbox(),
                     wire::Bytes{wire::SUBACK << 4, 3, packet.body[0], packet.body[1], client.qos});
    }

    void start_blast(Client& client) {
        client.blast = std::make_unique<stamp::Batch>(
            0, stamp::Batch::Shape{.packets = BLAST_PACKETS, .payload_bytes = payload_bytes_, .qos = client.qos});
        if (client.qos > 0)
            for (std::size_t i = 0; i < BLAST_PACKETS; ++i)
                client.blast->set_packet_id(i, static_cast<std::uint16_t>(i + 1));
    }

    void publish(Client& client, const Packet& packet) {
        const wire::PublishView message = wire::view_publish(packet);
        const bool is_dropped = mode_ == Mode::LOSSY && ++published_ % 1000 == 0;
        if ((mode_ == Mode::RELAY || mode_ == Mode::LOSSY) && !is_dropped)
            for (Client* target : route(message.topic)) wire::append(target->connection.outbox(), packet.whole);
        if (packet.qos() > 0)
            wire::append_ack(client.connection.outbox(), packet.qos() == 1 ? wire::PUBACK : wire::PUBREC,
                             message.packet_id);
    }

    // The generator's filters are an exact topic, or one whose wildcards are its last levels.
    const std::vector<Client*>& route(std::string_view topic) {
        if (const auto known = routes_.find(topic); known != routes_.end()) return known->second;
        std::vector<Client*> targets;
        for (auto& [_, other] : clients_) {
            const std::string_view filter = other.filter;
            const std::size_t wildcard = filter.find('+');
            if (wildcard == filter.npos ? filter == topic : topic.starts_with(filter.substr(0, wildcard)))
                targets.push_back(&other);
        }
        return routes_.emplace(topic, std::move(targets)).first->second;
    }

    void flush(std::uint64_t tag, Client& client) {
        try {
            if (client.blast && client.connection.flush()) blast(client);
            const bool wants_write = !client.connection.flush() || client.blast;
            if (wants_write != client.is_awaiting_write)
                epoll_.change(client.connection.fd(), wants_write ? EPOLLIN | EPOLLOUT : EPOLLIN, tag);
            client.is_awaiting_write = wants_write;
        } catch (const std::system_error&) {
            closed_.insert(tag);
        }
    }

    void blast(Client& client) {
        while (!client.connection.is_blocked()) {
            for (std::size_t i = 0; i < BLAST_PACKETS; ++i) client.blast->set_number(i, client.blasted++);
            client.connection.write(client.blast->range(0, BLAST_PACKETS));
        }
    }

    void forget(std::uint64_t tag) {
        clients_.erase(tag);
        routes_.clear();
    }

    const Mode mode_;
    const std::size_t payload_bytes_;
    net::Epoll epoll_;
    net::Fd listener_;
    std::uint64_t last_tag_ = LISTENER;
    std::uint64_t published_ = 0;
    std::unordered_map<std::uint64_t, Client> clients_;
    std::unordered_map<std::string, std::vector<Client*>, TopicHash, std::equal_to<>> routes_;
    std::set<std::uint64_t> closed_;
};

void run_peer(const Options& options) {
    static const std::map<std::string, Mode> MODES{
        {"relay", Mode::RELAY}, {"lossy", Mode::LOSSY}, {"discard", Mode::DISCARD}, {"blast", Mode::BLAST}};
    const auto mode = MODES.find(options.text("mode"));
    if (mode == MODES.end()) throw std::invalid_argument("--mode must be relay, lossy, discard or blast");
    signal(SIGPIPE, SIG_IGN);
    Peer(mode->second, options.port(), options.count("payload")).serve();
}

}  // namespace

Command peer_command() {
    return {"peer",
            "serve as a peer that does next to nothing, to measure the generator itself; until terminated",
            {PORT,
             {"mode", "relay", "relay: forward; lossy: nearly all; discard: only answer handshakes; blast: send"},
             {"payload", "64", "bytes, for blast"}},
            run_peer};
}
