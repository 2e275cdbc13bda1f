#pragma once

/// `polybus serve` as a process of its own, on a port that stays the same when it is killed and started again.

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "check.hpp"

extern char** environ;

namespace real {

class Broker {
public:
    /// `configuration` goes behind the listener, `listener` into it; `prepare` puts files into its folder.
    explicit Broker(std::string configuration = "", std::string listener = "",
                    const std::function<void(const std::filesystem::path&)>& prepare = {})
        : configuration_(std::move(configuration)), listener_(std::move(listener)) {
        std::string name = (std::filesystem::temp_directory_path() / "polybus-cpp-XXXXXX").string();
        CHECK(::mkdtemp(name.data()) != nullptr);
        folder_ = name;
        if (prepare) prepare(folder_);
        start();
    }
    Broker(const Broker&) = delete;
    Broker& operator=(const Broker&) = delete;

    ~Broker() {
        if (pid_ > 0) stop(SIGTERM);
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
    }

    [[nodiscard]] std::uint16_t port() const { return port_; }
    [[nodiscard]] std::filesystem::path folder() const { return folder_; }

    void start() {
        std::ofstream(folder_ / "polybus.toml") << "[[listener]]\nprotocol = \"tbus\"\nport = " << port_ << "\n"
                                                << listener_ << "\n"
                                                << configuration_ << "\n";
        const std::string config = (folder_ / "polybus.toml").string();
        run({"serve", "--memory", "--config", config});
        CHECK_EVENTUALLY(is_ready());
        const std::string text = output();
        const std::size_t address = text.find("://", text.find("is ready")) + 3; // log lines may follow
        port_ = static_cast<std::uint16_t>(std::stoi(text.substr(text.find(':', address) + 1)));
    }

    void kill() { stop(SIGKILL); }

    void stop(int signal) {
        ::kill(pid_, signal);
        int status = 0;
        ::waitpid(pid_, &status, 0);
        pid_ = -1;
    }

    /// Another command of the program, to its end.
    static void command(const std::vector<std::string>& arguments, const std::filesystem::path& input) {
        const std::filesystem::path output = input.string() + ".output";
        const pid_t pid = spawn(arguments, input, output);
        int status = 0;
        ::waitpid(pid, &status, 0);
        if (status != 0) throw check::Failure("polybus " + arguments.at(0) + " failed: " + read(output));
    }

private:
    static std::string read(const std::filesystem::path& path) {
        std::ostringstream text;
        text << std::ifstream(path).rdbuf();
        return text.str();
    }

    static pid_t spawn(const std::vector<std::string>& arguments, const std::filesystem::path& input,
                       const std::filesystem::path& output) {
        const char* program = std::getenv("POLYBUS_BIN");
        if (!program)
            throw check::Failure(
                "POLYBUS_BIN is not set: it names the program of the broker, such as .venv/bin/polybus");
        std::vector<char*> argv = {const_cast<char*>(program)};
        for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
        argv.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_addopen(&actions, 0, input.c_str(), O_RDONLY, 0);
        ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::posix_spawn_file_actions_adddup2(&actions, 1, 2);
        pid_t pid = -1;
        const int fault = ::posix_spawn(&pid, program, &actions, nullptr, argv.data(), environ);
        ::posix_spawn_file_actions_destroy(&actions);
        if (fault) throw check::Failure(std::string("cannot start ") + program);
        return pid;
    }

    void run(const std::vector<std::string>& arguments) {
        pid_ = spawn(arguments, "/dev/null", folder_ / "output.txt");
    }

    [[nodiscard]] std::string output() const { return read(folder_ / "output.txt"); }

    [[nodiscard]] bool is_ready() {
        if (::waitpid(pid_, nullptr, WNOHANG) == pid_) {
            pid_ = -1;
            throw check::Failure("the broker ended: " + output());
        }
        const std::string text = output();
        const std::size_t ready = text.find("is ready");
        const std::size_t address = text.find("://", ready);
        return ready != std::string::npos && address != std::string::npos &&
               text.find('\n', address) != std::string::npos;
    }

    std::string configuration_;
    std::string listener_;
    std::filesystem::path folder_;
    pid_t pid_ = -1;
    std::uint16_t port_ = 0;
};

} // namespace real
