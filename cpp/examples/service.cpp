// A service that triples numbers. Run it beside `polybus serve`, then run `requester`.

#include <iostream>
#include <string>

#include <polybus/polybus.hpp>

int main() {
    polybus::Client bus{{.client_id = "tripler"}};

    auto service = bus.serve("triple", [](const polybus::Message& request) -> polybus::Bytes {
        return std::to_string(3 * std::stoi(request.payload));
    });

    std::cout << "Serving 'triple'. Press Enter to stop." << std::endl;
    std::cin.get();
}
