#include <cstdio>

#include <polybus/polybus.hpp>
#include <polybus/tbus.hpp>

int main() {
    try {
        polybus::Client bus{{.client_id = ""}};
    } catch (const polybus::UsageError& error) {
        std::printf("%s\n", error.what());
        return decodeString(encodeString("linked")) == "linked" ? 0 : 1;
    }
    return 1;
}
