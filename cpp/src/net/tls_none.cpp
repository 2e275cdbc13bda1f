// The library was built without OpenSSL.

#include <polybus/errors.hpp>

#include "link.hpp"

namespace polybus::net {

std::unique_ptr<TlsContext> make_tls_context(const Tls&) {
    throw UsageError(
        "this library was built without TLS; build it with OpenSSL (-DPOLYBUS_TLS=ON) to use Options::tls");
}

} // namespace polybus::net
