// TLS with OpenSSL on a socket that does not block.

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <limits>

#include <polybus/errors.hpp>

#include "link.hpp"

namespace polybus::net {

namespace {

std::string last_words() {
    const unsigned long code = ::ERR_get_error();
    ::ERR_clear_error();
    if (!code) return "no reason given";
    char text[256];
    ::ERR_error_string_n(code, text, sizeof text);
    return text;
}

class OpenSslSession final : public TlsSession {
public:
    OpenSslSession(SSL_CTX* context, int descriptor, const std::string& name, bool is_checked)
        : ssl_(::SSL_new(context)) {
        if (!ssl_) throw Error("TLS: " + last_words());
        ::SSL_set_fd(ssl_.get(), descriptor);
        ::SSL_set_connect_state(ssl_.get());
        in6_addr address{};
        const bool is_address =
            ::inet_pton(AF_INET, name.c_str(), &address) == 1 || ::inet_pton(AF_INET6, name.c_str(), &address) == 1;
        if (!is_address) ::SSL_set_tlsext_host_name(ssl_.get(), name.c_str());
        if (!is_checked) return;
        if (is_address)
            ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl_.get()), name.c_str());
        else
            ::SSL_set1_host(ssl_.get(), name.c_str());
    }

    Io handshake() override {
        ::ERR_clear_error();
        Io io = result_of(::SSL_do_handshake(ssl_.get()));
        if (io.status == Io::Status::failed) {
            const long verdict = ::SSL_get_verify_result(ssl_.get());
            if (verdict != X509_V_OK)
                io.text =
                    std::string("the broker's certificate is not trusted: ") + ::X509_verify_cert_error_string(verdict);
        }
        return io;
    }

    Io read(std::span<char> space) override {
        ::ERR_clear_error();
        return result_of(::SSL_read(ssl_.get(), space.data(), limited(space.size())));
    }

    Io write(std::string_view data) override {
        ::ERR_clear_error();
        return result_of(::SSL_write(ssl_.get(), data.data(), limited(data.size())));
    }

    [[nodiscard]] bool wants_write() const override { return wants_write_; }
    [[nodiscard]] bool has_buffered() const override { return ::SSL_pending(ssl_.get()) > 0; }

    void say_goodbye() override {
        ::ERR_clear_error();
        if (!is_broken_) ::SSL_shutdown(ssl_.get());
        is_broken_ = true;
        ::ERR_clear_error();
    }

private:
    struct Free {
        void operator()(SSL* ssl) const { ::SSL_free(ssl); }
    };

    static int limited(std::size_t size) {
        return static_cast<int>(std::min<std::size_t>(size, std::numeric_limits<int>::max()));
    }

    Io result_of(int count) {
        wants_write_ = false;
        if (count > 0) return {Io::Status::ok, static_cast<std::size_t>(count)};
        const int system_error = errno;
        switch (::SSL_get_error(ssl_.get(), count)) {
        case SSL_ERROR_WANT_READ: return {Io::Status::again};
        case SSL_ERROR_WANT_WRITE: wants_write_ = true; return {Io::Status::again};
        case SSL_ERROR_ZERO_RETURN: return {Io::Status::ended, 0, "the broker closed the connection"};
        case SSL_ERROR_SYSCALL:
            is_broken_ = true;
            if (!::ERR_peek_error())
                return {Io::Status::ended, 0,
                        system_error ? std::generic_category().message(system_error)
                                     : "the broker closed the connection"};
            [[fallthrough]];
        default: is_broken_ = true; return {Io::Status::failed, 0, "TLS: " + last_words()};
        }
    }

    std::unique_ptr<SSL, Free> ssl_;
    bool wants_write_ = false;
    bool is_broken_ = false;
};

class OpenSslContext final : public TlsContext {
public:
    explicit OpenSslContext(const Tls& tls) : tls_(tls), context_(::SSL_CTX_new(::TLS_client_method())) {
        if (!context_) throw UsageError("TLS: " + last_words());
        ::SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
        ::SSL_CTX_set_mode(context_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        ::SSL_CTX_set_verify(context_.get(), tls.insecure ? SSL_VERIFY_NONE : SSL_VERIFY_PEER, nullptr);
        if (!tls.ca_file.empty())
            check(::SSL_CTX_load_verify_locations(context_.get(), tls.ca_file.c_str(), nullptr), "ca_file",
                  tls.ca_file);
        else if (!tls.insecure)
            ::SSL_CTX_set_default_verify_paths(context_.get());
        if (!tls.cert_file.empty()) {
            check(::SSL_CTX_use_certificate_chain_file(context_.get(), tls.cert_file.c_str()), "cert_file",
                  tls.cert_file);
            const std::string& key = tls.key_file.empty() ? tls.cert_file : tls.key_file;
            check(::SSL_CTX_use_PrivateKey_file(context_.get(), key.c_str(), SSL_FILETYPE_PEM), "key_file", key);
        }
    }

    std::unique_ptr<TlsSession> open(int descriptor, const std::string& host) override {
        const std::string& name = tls_.server_name.empty() ? host : tls_.server_name;
        return std::make_unique<OpenSslSession>(context_.get(), descriptor, name, !tls_.insecure);
    }

private:
    struct Free {
        void operator()(SSL_CTX* context) const { ::SSL_CTX_free(context); }
    };

    static void check(int result, const char* option, const std::string& file) {
        if (result != 1) throw UsageError(std::string("Tls::") + option + " '" + file + "': " + last_words());
    }

    Tls tls_;
    std::unique_ptr<SSL_CTX, Free> context_;
};

} // namespace

std::unique_ptr<TlsContext> make_tls_context(const Tls& tls) { return std::make_unique<OpenSslContext>(tls); }

} // namespace polybus::net
