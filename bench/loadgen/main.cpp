// The load generator's command line: `loadgen COMMAND [--option value]…`.

#include <iostream>

#include "commands.hpp"

namespace {

void explain(const std::vector<Command>& commands) {
    std::cout << "Load generator for MQTT 3.1.1 and, in `requests`, for TBus. Results are one line of JSON.\n";
    for (const auto& command : commands) {
        std::cout << "\nloadgen " << command.name << "\n  " << command.meaning << "\n";
        for (const auto& option : command.options)
            std::cout << "    --" << option.name << " (" << (option.fallback.empty() ? "none" : option.fallback)
                      << "): " << option.meaning << "\n";
    }
}

}  // namespace

int main(int argc, char** argv) {
    const std::vector<Command> commands{throughput_command(), latency_command(), connects_command(),
                                        hold_command(),       queue_command(),   drain_command(),
                                        requests_command(),   peer_command()};
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.empty() || arguments[0] == "--help") {
        explain(commands);
        return 0;
    }
    try {
        for (const auto& command : commands) {
            if (command.name != arguments[0]) continue;
            command.run(Options(command.options, {arguments.begin() + 1, arguments.end()}));
            return 0;
        }
        throw std::invalid_argument("no command " + arguments[0] + "; see --help");
    } catch (const std::exception& error) {
        std::cerr << "loadgen: " << error.what() << "\n";
        return 1;
    }
}
