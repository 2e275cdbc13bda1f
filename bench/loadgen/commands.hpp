// The commands of the load generator. Each prints its result as one line of JSON.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

struct Command {
    std::string name;
    std::string meaning;
    std::vector<Option> options;
    void (*run)(const Options&);
};

Command throughput_command();
Command latency_command();
Command connects_command();
Command hold_command();
Command queue_command();
Command drain_command();
Command requests_command();
Command peer_command();
