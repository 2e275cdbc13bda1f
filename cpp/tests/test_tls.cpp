// TLS with the real broker, and with brokers that should not be trusted.

#define TEST_GROUP "tls"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <polybus/polybus.hpp>

#include "check.hpp"
#include "fake_broker.hpp"
#include "real_broker.hpp"

using namespace polybus;

namespace {

/// A certificate for `name` that signs itself, and its key, as PEM files.
void write_certificate(const std::filesystem::path& folder, const std::string& stem, const std::string& name) {
    EVP_PKEY* key = ::EVP_RSA_gen(2048);
    X509* certificate = ::X509_new();
    ::X509_set_version(certificate, 2);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(certificate), 1);
    ::X509_gmtime_adj(::X509_getm_notBefore(certificate), -3600);
    ::X509_gmtime_adj(::X509_getm_notAfter(certificate), 86'400);
    ::X509_set_pubkey(certificate, key);
    X509_NAME* subject = ::X509_get_subject_name(certificate);
    ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1,
                                 0);
    ::X509_set_issuer_name(certificate, subject);
    for (const auto& [id, value] :
         {std::pair<int, std::string>{NID_subject_alt_name, name}, {NID_basic_constraints, "critical,CA:TRUE"}}) {
        X509_EXTENSION* extension = ::X509V3_EXT_conf_nid(nullptr, nullptr, id, value.c_str());
        CHECK(extension != nullptr);
        ::X509_add_ext(certificate, extension, -1);
        ::X509_EXTENSION_free(extension);
    }
    CHECK(::X509_sign(certificate, key, ::EVP_sha256()) > 0);
    const auto write = [&](const char* ending, auto put) {
        FILE* file = std::fopen((folder / (stem + ending)).c_str(), "w");
        CHECK(file && put(file));
        std::fclose(file);
    };
    write(".pem", [&](FILE* file) { return ::PEM_write_X509(file, certificate) == 1; });
    write(".key",
          [&](FILE* file) { return ::PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1; });
    ::X509_free(certificate);
    ::EVP_PKEY_free(key);
}

constexpr const char* listener = "kind = \"tls\"\ncertificate = \"server.pem\"\nprivate_key = \"server.key\"\n";

} // namespace

TEST("requests, large ones too, over TLS; who cannot be trusted is not") {
    real::Broker broker("", listener, [](const std::filesystem::path& folder) {
        write_certificate(folder, "server", "IP:127.0.0.1,DNS:broker.example");
        write_certificate(folder, "stranger", "IP:127.0.0.1");
    });
    const auto file = [&](const char* name) { return (broker.folder() / name).string(); };
    Options options{.client_id = "tls", .port = broker.port(), .tls = Tls{.ca_file = file("server.pem")}};
    {
        Client bus{options};
        auto service = bus.serve("echo", [](const Message& message) { return message.payload; });
        const std::string large(3'000'000, 'x');
        CHECK_EQUAL(bus.request("echo", "hello").text(), "hello");
        CHECK(bus.request("echo", large, {.timeout = std::chrono::seconds(60)}).text() == large);
    }
    options.tls = Tls{.ca_file = file("stranger.pem")};
    CHECK_THROWS(ConnectionFailed, "not trusted", Client(options));
    options.tls = Tls{}; // the system's authorities do not know it
    CHECK_THROWS(ConnectionFailed, "not trusted", Client(options));
    options.tls = Tls{.ca_file = file("server.pem"), .server_name = "somebody.else"};
    CHECK_THROWS(ConnectionFailed, "not trusted", Client(options));
    options.tls = Tls{.ca_file = file("server.pem"), .server_name = "broker.example"};
    Client(options).flush();
    options.tls = Tls{.insecure = true};
    Client(options).flush();
    options.tls.reset();
    options.connect_timeout = std::chrono::milliseconds(500);
    CHECK_THROWS(ConnectionFailed, "", Client(options)); // TBus where TLS is expected
}

TEST("a client certificate, if the broker asks for one") {
    const std::string asking = std::string(listener) + "client_ca = \"me.pem\"\nrequire_client_certificate = true\n";
    real::Broker broker("", asking, [](const std::filesystem::path& folder) {
        write_certificate(folder, "server", "IP:127.0.0.1");
        write_certificate(folder, "me", "DNS:me");
    });
    const auto file = [&](const char* name) { return (broker.folder() / name).string(); };
    Options options{.client_id = "tls", .port = broker.port()};
    options.tls = Tls{.ca_file = file("server.pem"), .cert_file = file("me.pem"), .key_file = file("me.key")};
    Client(options).flush();
    options.tls = Tls{.ca_file = file("server.pem")};
    CHECK_THROWS(ConnectionFailed, "", Client(options));
}

TEST("files that cannot be read are named, and a broker without TLS is no TLS broker") {
    CHECK_THROWS(UsageError, "Tls::ca_file 'nowhere.pem'",
                 Client(Options{.client_id = "c", .tls = Tls{.ca_file = "nowhere.pem"}}));
    CHECK_THROWS(UsageError, "Tls::cert_file 'nowhere.pem'",
                 Client(Options{.client_id = "c", .tls = Tls{.cert_file = "nowhere.pem"}}));
    fake::Broker plain([](fake::Peer& peer) {
        peer.send_bytes(std::string_view("\x20\x02\x00\x00\xd0\x00", 6));
        peer.hang();
    });
    CHECK_THROWS(ConnectionFailed, "no TLS connection",
                 Client(Options{.client_id = "c", .port = plain.port(), .tls = Tls{.insecure = true}}));
}
