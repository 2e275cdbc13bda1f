// polybus-tests [GROUP [NAME PART]]: runs the tests of a group, or all.

#include <csignal>
#include <cstdio>
#include <exception>

#include "check.hpp"

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN); // for the sockets of fake brokers; the library itself does without
    int failed = 0;
    int run = 0;
    for (const check::Case& test : check::cases()) {
        if (argc > 1 && test.group != argv[1]) continue;
        if (argc > 2 && test.name.find(argv[2]) == std::string::npos) continue;
        ++run;
        std::string fault;
        try {
            test.run();
        } catch (const std::exception& error) {
            fault = error.what();
        }
        if (fault.empty()) {
            std::printf("ok      %s: %s\n", test.group.c_str(), test.name.c_str());
        } else {
            ++failed;
            std::printf("FAILED  %s: %s\n        %s\n", test.group.c_str(), test.name.c_str(), fault.c_str());
        }
        std::fflush(stdout);
    }
    std::printf("%d of %d failed\n", failed, run);
    return failed || !run ? 1 : 0;
}
