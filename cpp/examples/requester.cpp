// Asks the service of service.cpp: requester [NUMBER]

#include <chrono>
#include <iostream>

#include <polybus/polybus.hpp>

using namespace std::chrono_literals;

int main(int argc, char** argv) try {
    polybus::Client bus{{.client_id = "asker"}};

    polybus::Bytes answer = bus.request("triple", argc > 1 ? argv[1] : "14", {.timeout = 5s});
    std::cout << answer.text() << '\n';
} catch (const polybus::ServiceError& error) {
    std::cerr << "The service could not do it: " << error.what() << '\n';
    return 1;
} catch (const polybus::Error& error) {
    std::cerr << error.what() << '\n';
    return 1;
}
