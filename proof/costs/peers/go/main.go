// The usual lock over go-redis, commanded as the drivers of the holder suite are: goredis PORT
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

var release = redis.NewScript(`if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0`)

type command struct {
	ID    any    `json:"id"`
	Do    string `json:"do"`
	Lock  string `json:"lock"`
	Count int    `json:"count"`
}

func pair(ctx context.Context, client *redis.Client, lock string) error {
	value := uuid.NewString()
	free, err := client.SetNX(ctx, lock, value, 15*time.Second).Result()
	if err != nil || !free {
		return fmt.Errorf("not free: %v", err)
	}
	deleted, err := release.Run(ctx, client, []string{lock}, value).Int()
	if err != nil || deleted != 1 {
		return fmt.Errorf("not held: %v", err)
	}
	return nil
}

func run() error {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + os.Args[1]})
	answers := json.NewEncoder(os.Stdout)
	if err := answers.Encode(map[string]string{"event": "hello", "client": "go-redis"}); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked command
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		if asked.Do != "pairs" {
			return fmt.Errorf("no command %s", asked.Do)
		}
		before := time.Now()
		for range asked.Count {
			if err := pair(ctx, client, asked.Lock); err != nil {
				return err
			}
		}
		took := float64(time.Since(before).Nanoseconds()) / 1e6
		if err := answers.Encode(map[string]any{"id": asked.ID, "ok": true, "took_ms": took}); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
