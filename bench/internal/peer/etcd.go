package peer

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
	"google.golang.org/grpc"
)

// EtcdMutex is the lock of etcd's own client.
func EtcdMutex() Kind {
	return Kind{
		Name: "etcd", Server: Etcd,
		Is:       "etcd's concurrency.Mutex, one server",
		Settings: "a Session for each caller, used again and again; in W3 one Session for all locks",
		Guarantees: Guarantees{
			Durable: "yes, flushed before the answer",
			Fair:    "yes, a queue on the server",
			Token:   "yes (revision), nothing checks it",
			Bound:   "lease of the session",
		},
		In: []Workload{W1, W2, W3, W4},
		Notes: map[Workload]string{
			W3: "the locks of a session share its lease: one keep-alive for all",
			W4: "its least lease is 2 s; counted from the last keep-alive that was sent",
		},
		Modules: []string{"go.etcd.io/etcd/client/v3"},
		Open:    openEtcd,
	}
}

type etcdClient struct {
	*counter
	config   Config
	client   *clientv3.Client
	mu       sync.Mutex
	sessions []*concurrency.Session
}

// etcdLeastTTL is the least that a server with default settings grants.
const etcdLeastTTL = 2 * time.Second

func openEtcd(_ context.Context, c Config) (Client, error) {
	counted := newCounter(c)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{c.Address}, Logger: zap.NewNop(), DialTimeout: 5 * time.Second,
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(counted.unary), grpc.WithChainStreamInterceptor(counted.stream),
		},
	})
	if err != nil {
		return nil, err
	}
	return &etcdClient{counter: counted, config: c, client: client}, nil
}

func (c *counter) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	c.add(1)
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (c *counter) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &countedStream{s, c}, nil
}

// countedStream counts what is sent on a stream: keep-alives, and the beginning and end of watches.
type countedStream struct {
	grpc.ClientStream
	counted *counter
}

func (s *countedStream) SendMsg(m any) error {
	switch m.(type) {
	case *pb.LeaseKeepAliveRequest, *pb.WatchRequest:
		s.counted.add(1)
	}
	return s.ClientStream.SendMsg(m)
}

func (c *etcdClient) session() (*concurrency.Session, error) {
	s, err := concurrency.NewSession(c.client, concurrency.WithTTL(int(max(etcdLeastTTL, c.config.TTL)/time.Second)))
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions = append(c.sessions, s)
	return s, nil
}

func (c *etcdClient) Caller(context.Context) (Caller, error) {
	s, err := c.session()
	if err != nil {
		return nil, err
	}
	return c.caller(s), nil
}

func (c *etcdClient) caller(s *concurrency.Session) Func {
	return func(ctx context.Context, name string) (func(context.Context) error, error) {
		m := concurrency.NewMutex(s, "/"+name)
		lock := m.TryLock
		if c.config.waits() {
			lock = m.Lock
		}
		if err := lock(ctx); err != nil {
			return nil, err
		}
		return m.Unlock, nil
	}
}

// Hold takes all locks in one session.
func (c *etcdClient) Hold(ctx context.Context, names []string) error {
	s, err := c.session()
	if err != nil {
		return err
	}
	return each(ctx, names, c.caller(s))
}

// Expiry counts the lease's TTL from the last keep-alive.
func (c *etcdClient) Expiry(_ context.Context, d Death) (time.Time, error) {
	return d.LastSent.Add(max(etcdLeastTTL, c.config.TTL)), nil
}

func (c *etcdClient) Close(context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(c.sessions))
	for i, s := range c.sessions {
		all.Go(func() { errs[i] = s.Close() })
	}
	all.Wait()
	return errors.Join(append(errs, c.client.Close())...)
}
