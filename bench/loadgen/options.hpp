// Command-line options: a table of names, defaults and explanations, and the values given.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

struct Option {
    std::string name;
    std::string fallback;
    std::string meaning;
};

class Options {
public:
    Options(std::vector<Option> table, const std::vector<std::string>& arguments) : table_(std::move(table)) {
        for (const auto& option : table_) values_[option.name] = option.fallback;
        for (std::size_t i = 0; i < arguments.size(); i += 2) {
            const auto& given = arguments[i];
            if (!given.starts_with("--") || !values_.contains(given.substr(2)))
                throw std::invalid_argument("unknown option " + given);
            if (i + 1 == arguments.size()) throw std::invalid_argument(given + " needs a value");
            values_[given.substr(2)] = arguments[i + 1];
        }
    }

    const std::string& text(const std::string& name) const { return values_.at(name); }

    double number(const std::string& name) const {
        try {
            return std::stod(text(name));
        } catch (const std::exception&) {
            throw std::invalid_argument("--" + name + " must be a number, not '" + text(name) + "'");
        }
    }

    std::size_t count(const std::string& name) const {
        const double value = number(name);
        if (value < 0) throw std::invalid_argument("--" + name + " must not be negative");
        return static_cast<std::size_t>(value);
    }

    std::uint16_t port(const std::string& name = "port") const {
        const std::size_t value = count(name);
        if (value == 0 || value > 65535) throw std::invalid_argument("--" + name + " must be 1 to 65535");
        return static_cast<std::uint16_t>(value);
    }

    // "12,34" → {12, 34}
    std::vector<int> list(const std::string& name) const {
        std::vector<int> values;
        std::istringstream stream(text(name));
        for (std::string item; std::getline(stream, item, ',');) values.push_back(std::stoi(item));
        return values;
    }

private:
    std::vector<Option> table_;
    std::map<std::string, std::string> values_;
};

inline const Option PORT{"port", "0", "port of the broker on 127.0.0.1"};
inline const Option KEPT{"kept", "0", "1: the broker keeps the subscribers' sessions (CleanSession 0) during the run"};
inline const Option WATCH{"watch", "", "process ids, comma-separated, whose CPU time is reported"};
